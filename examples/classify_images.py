"""Train a Vision Transformer to tell images apart, and score it on images that it has not seen.

    python examples/classify_images.py                     # the handwritten digits of scikit-learn, 8 x 8 pixels
    python examples/classify_images.py --data FOLDER --image-size 64 --patch-size 8    # a folder for each class
    python examples/classify_images.py --tfds mnist --image-size 28 --patch-size 4     # of TensorFlow Datasets
    python examples/classify_images.py --saved outputs/images.keras --data FOLDER

The floor is the most frequent class; a logistic regression on the pixels stands beside the model. Ctrl-C ends the
training early. Needs `pip install "keras-transformer-kit[examples]"` and a backend.
"""

import json
import shlex
import sys
from pathlib import Path

import tasks

SIZES = {"image_size": 8, "patch_size": 2, "batch_size": 64, "layers": 3, "heads": 4, "hidden_dim": 64}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=2.0, **SIZES, dropout=0.1, learning_rate=3e-3)
    images = parser.add_mutually_exclusive_group()
    images.add_argument("--data", metavar="FOLDER", type=Path, help="holds a folder of image files for each class")
    images.add_argument("--tfds", metavar="NAME", help="a data set with the features `image` and `label`")
    parser.add_argument("--limit", metavar="N", type=int, default=20_000, help="most images of --tfds; default: 20000")
    parser.add_argument("--shift", metavar="N", type=int, default=1, help="pixels to move images by; default: 1")
    return parser.parse_args(argv)


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score, classification_report

import keras_transformer as kt


def read_images(args):
    """List of (image (H, W, C) from 0 to 1, name of its class)."""
    size = (args.image_size, args.image_size)
    if args.data:
        if not args.data.is_dir():
            raise ValueError(f"{args.data} is no folder with a folder of images for each class")
        files = [path for path in sorted(args.data.glob("*/*")) if path.is_file()]
        found = tasks.read_all(files, lambda path: np.asarray(keras.utils.load_img(path, target_size=size), "float32"))
        return [(image / 255, path.parent.name) for path, image in found]
    if args.tfds:
        rows = tasks.tfds_rows(args.tfds, "image", "label", limit=args.limit)
        resize = keras.ops.image.resize
        return [(keras.ops.convert_to_numpy(resize(x / np.float32(255), size)), str(label)) for x, label in rows]
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = [(x[..., None].astype("float32") / 16, str(label)) for x, label in zip(digits.images, digits.target)]
    if images[0][0].shape[:2] != size:
        raise ValueError(f"the digits of scikit-learn have 8 x 8 pixels. Received: --image-size {args.image_size}")
    return images


class ShiftedImages(keras.utils.PyDataset):
    """Batches of images, each moved by up to `shift` pixels, anew in every epoch; the edge is repeated."""

    def __init__(self, images, labels, args):
        super().__init__()
        self.images, self.labels, self.shift, self.size = images, labels, args.shift, args.batch_size
        self.random = np.random.default_rng(args.seed)
        self.order = self.random.permutation(len(images))

    def __len__(self):
        return max(1, len(self.images) // self.size)  # whole batches: what is left out in one epoch comes in another

    def __getitem__(self, index):
        rows = self.order[index * self.size : (index + 1) * self.size]
        around = (self.shift, self.shift)
        padded = np.pad(self.images[rows], ((0, 0), around, around, (0, 0)), mode="edge")
        (height, width), places = self.images.shape[1:3], self.random.integers(0, 2 * self.shift + 1, (len(rows), 2))
        moved = [x[top : top + height, left : left + width] for x, (top, left) in zip(padded, places)]
        return np.stack(moved), self.labels[rows]

    def on_epoch_end(self):
        self.order = self.random.permutation(self.order)


def arrays(rows, classes):
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ValueError(f"the model does not know the classes {unknown}. It knows: {classes}")
    images, labels = np.stack([image for image, _ in rows]), [classes.index(name) for _, name in rows]
    return images, np.asarray(labels, "int32")


def train(train_rows, valid_rows, path, args):
    classes = sorted({name for _, name in train_rows})
    (images, labels), valid = arrays(train_rows, classes), arrays(valid_rows, classes)
    model = kt.models.vit(
        None,
        num_classes=len(classes),
        image_size=images.shape[1:3],
        num_channels=images.shape[-1],
        patch_size=args.patch_size,
        num_layers=args.layers,
        hidden_dim=args.hidden_dim,
        num_heads=args.heads,
        intermediate_dim=2 * args.hidden_dim,
        dropout=args.dropout,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    data = ShiftedImages(images, labels, args)
    history = tasks.fit(model, data, valid, args, args.learning_rate, loss=loss, metrics=["accuracy"])
    kt.inspect.plot_history(history, path.with_suffix(".history.png"))
    model.save(path)
    path.with_suffix(".classes.json").write_text(json.dumps(classes), encoding="utf-8")


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        rows = read_images(args)
        train_rows, valid_rows, test_rows = tasks.split(rows, key=lambda row: row[0].tobytes())
        print(f"{len(train_rows):,} images to train on, {len(valid_rows):,} to validate, {len(test_rows):,} to test")
        args.output.mkdir(parents=True, exist_ok=True)
        path = args.saved or args.output / "images.keras"
        if not args.saved:
            train(train_rows, valid_rows, path, args)
        model = keras.models.load_model(path)  # the file, also just after the training
        classes = json.loads(path.with_suffix(".classes.json").read_text(encoding="utf-8"))
        images, labels = arrays(test_rows, classes)
        found = model.predict(images, verbose=0).argmax(-1)
    names = [classes[i] for i in sorted({*labels.tolist(), *found.tolist()})]
    print(classification_report(labels, found, target_names=names, zero_division=0))
    known = [x.reshape(len(x), -1) if x.ndim == 4 else x for x in arrays(train_rows, classes)]
    baselines = (DummyClassifier(), LogisticRegression(max_iter=200))
    floor, linear = (accuracy_score(labels, x.fit(*known).predict(images.reshape(len(images), -1))) for x in baselines)
    print(f"accuracy {accuracy_score(labels, found):.4f} (most frequent class {floor:.4f}, linear {linear:.4f})")
    picture = args.output / "images.png"
    ConfusionMatrixDisplay.from_predictions(labels, found, colorbar=False).figure_.savefig(picture)
    print(f"written: {path}, {picture}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
