#!/usr/bin/env python3
"""Make the 20 clients of pFedMe's experiments on MNIST, as an .npz for dataset=npz.

    python docs/studies/pfedme_clients.py                writes ~/.cache/fedopt/mnist_pfedme.npz
    python docs/studies/pfedme_clients.py FILE

They are those of the paper's generator as it was until June 2021 (data/Mnist/generate_niid_20users.py, also in dual-grp/pFedMe):
drawn with the same seed, they have the paper's 1,165 to 3,834 training images. Its slices of the images of a label all begin at the
first one, so that clients share images: 69,969 rows are 23,536 images. 10,000 images that no client has are for testing.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fedopt.data.datasets import Torchvision

CLIENTS, LABELS, UNSEEN = 20, 2, 10_000


def parts(total: int, count: int, rng: np.random.RandomState) -> list[int]:
    """How many images of a label each of its clients gets."""
    sizes = []
    for _ in range(count - 1):
        sizes.append(rng.randint(total // (count + 1), total // 2))
        total -= sizes[-1]
    return [*sizes, total]


def clients(y: np.ndarray) -> list[list[int]]:
    """The rows of each client. y: the labels of all 70,000 images, those for training first."""
    rng, of_label = np.random.RandomState(1), [np.flatnonzero(y == label) for label in range(10)]
    sizes = np.array([parts(len(rows), CLIENTS * LABELS // 10, rng) for rows in of_label]).T.ravel().tolist()
    begin = (y[:10] == 9).astype(int)  # what was left in the variable idx: a mask, which counts as 0 or 1
    found = []
    for client in range(CLIENTS):
        labels = [(client + j) % 10 for j in range(LABELS)]
        found.append([row for label in labels for row in of_label[label][begin[label] : sizes.pop(0)]])
        begin[labels] = 1
    return found


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "~/.cache/fedopt/mnist_pfedme.npz").expanduser()
    data = Torchvision("mnist").load()
    x = np.concatenate([data.x_train, data.x_test]).reshape(-1, 784)
    y = np.concatenate([data.y_train, data.y_test])
    of_clients = clients(y)
    rows, owners = np.concatenate(of_clients), np.repeat(np.arange(CLIENTS), [*map(len, of_clients)])
    unseen = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(len(y)), rows))[:UNSEEN]
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"x_train": x[rows], "y_train": y[rows], "client_train": owners, "x_test": x[unseen], "y_test": y[unseen]}
    np.savez_compressed(path, **arrays)
    print(f"{path}: {len(rows):,} rows of {CLIENTS} clients, {len({*rows.tolist()}):,} different images")


if __name__ == "__main__":
    main()
