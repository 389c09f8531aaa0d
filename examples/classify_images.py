"""Train a Vision Transformer to tell images apart, and score it on images that it has not seen.

    python examples/classify_images.py                     # the handwritten digits of scikit-learn, 8 x 8 pixels
    python examples/classify_images.py --data FOLDER --image-size 64 --patch-size 8    # a folder for each class
    python examples/classify_images.py --tfds mnist --image-size 28 --patch-size 4     # of TensorFlow Datasets
    python examples/classify_images.py --saved outputs/images.keras --data FOLDER      # score it on others
    python examples/classify_images.py --saved outputs/images.keras --classify one.png two.png

The floor is the most frequent class; a logistic regression on the pixels stands beside the model. Ctrl-C ends the
training early. Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `images.py`, `reading.py` and `tasks.py` along.
"""

import shlex
import sys
from pathlib import Path

import reading
import tasks

SIZES = {"image_size": (8, "pixels of a side, to which images are brought"), "patch_size": (2, "pixels of a patch")}
SIZES |= {"batch_size": 64, "layers": 3, "heads": 4, "hidden_dim": 64, "dropout": 0.1, "learning_rate": 3e-3}
SIZES |= {"limit": (20_000, "most images of --tfds"), "shift": (1, "pixels that images are moved by in training")}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=2.0, **SIZES)
    images = parser.add_mutually_exclusive_group()
    images.add_argument("--data", metavar="FOLDER", type=Path, help="holds a folder of image files for each class")
    images.add_argument("--tfds", metavar="NAME", help="a data set with the features `image` and `label`")
    parser.add_argument("--classify", metavar="FILE", type=Path, nargs="+", help="classify these by --saved, and leave")
    args = parser.parse_args(argv)
    if args.classify and not args.saved:
        parser.error("--classify needs --saved")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score, classification_report

import images as images_of
import keras_transformer as kt


def arrays(rows, classes):
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ValueError(f"the model does not know the classes {unknown}. It knows: {classes}")
    images, labels = np.stack([image for image, _ in rows]), [classes.index(name) for _, name in rows]
    return images, np.asarray(labels, "int32")


def train(train_rows, valid_rows, path, args):
    classes = sorted({name for _, name in train_rows})
    if len(classes) < 2:
        raise ValueError(f"there is one class alone, {classes[0]!r}: nothing to tell apart")
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
    data = images_of.ShiftedImages(images, labels, args)
    history = tasks.fit(model, data, valid, args, args.learning_rate, loss=loss, metrics=["accuracy"])
    kt.inspect.plot_history(history, path.with_suffix(".history.png"))
    model.save(path)
    reading.write_settings(path, classes=classes)


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "images.keras"
        saved = args.saved and keras.models.load_model(args.saved)
        size = saved.input_shape[1:3] if saved else (args.image_size, args.image_size)
        if args.classify:
            images = np.stack([images_of.read_image(file, size) for file in args.classify])
            names = reading.settings(path)["classes"]
            return print(*(names[i] for i in saved.predict(images, verbose=0).argmax(-1)), sep="\n")
        rows = images_of.read_images(args, size)
        train_rows, valid_rows, test_rows = reading.split(rows, key=lambda row: row[0].tobytes())
        print(f"{len(train_rows):,} images to train on, {len(valid_rows):,} to validate, {len(test_rows):,} to test")
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            arrays(test_rows, sorted({name for _, name in train_rows}))  # refused before the training, not after it
            train(train_rows, valid_rows, path, args)
        model = saved or keras.models.load_model(path)  # the file, also just after the training
        classes = reading.settings(path)["classes"]
        images, labels = arrays(test_rows, classes)
        found = model.predict(images, verbose=0).argmax(-1)
        names = [classes[i] for i in sorted({*labels.tolist(), *found.tolist()})]
        print(classification_report(labels, found, target_names=names, zero_division=0))
        known = [x.reshape(len(x), -1) if x.ndim == 4 else x for x in arrays(train_rows, classes)]
        rivals = [x.fit(*known) for x in (DummyClassifier(), LogisticRegression(max_iter=200))]
        floor, linear = (accuracy_score(labels, x.predict(images.reshape(len(images), -1))) for x in rivals)
    print(f"accuracy {accuracy_score(labels, found):.4f} (most frequent class {floor:.4f}, linear {linear:.4f})")
    picture = args.output / "images.png"
    ConfusionMatrixDisplay.from_predictions(labels, found, colorbar=False).figure_.savefig(picture)
    print(f"written: {path}, {picture}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
