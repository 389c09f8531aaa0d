"""Images with their classes: of folders, of data sets, and the digits that scikit-learn has."""

import keras
import numpy as np

import reading


def read_image(path, size):
    """(H, W, 3) from 0 to 1."""
    return np.float32(keras.utils.load_img(path, target_size=size)) / 255


def read_images(args, size):
    """List of (image (H, W, C) from 0 to 1, name of its class)."""
    if args.data:
        if not args.data.is_dir():
            raise ValueError(f"{args.data} is no folder with a folder of images for each class")
        files = [path for path in sorted(args.data.glob("*/*")) if path.is_file()]
        return [(image, path.parent.name) for path, image in reading.read_all(files, lambda x: read_image(x, size))]
    if args.tfds:
        rows = reading.tfds_rows(args.tfds, "image", "label", limit=args.limit)
        resize = keras.ops.image.resize
        return [(keras.ops.convert_to_numpy(resize(x / np.float32(255), size)), str(label)) for x, label in rows]
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = [(x[..., None].astype("float32") / 16, str(label)) for x, label in zip(digits.images, digits.target)]
    if images[0][0].shape[:2] != size:
        raise ValueError(f"the digits of scikit-learn have 8 x 8 pixels, and the model takes {size[0]} x {size[1]}")
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
