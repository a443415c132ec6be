"""A plain training script: a small network learns scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
images = images.float() / 16
training = TensorDataset(images[:1400], labels[:1400])


def network(config):
    hidden = config["width"]
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(config["dropout"]), nn.Linear(hidden, 10))


def train(config):
    model = network(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["rate"])
    loader = DataLoader(training, batch_size=32, shuffle=True)
    for epoch in range(9):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(images[1400:1600])
        val_loss = cross_entropy(scores, labels[1400:1600]).item()
        print(f"epoch {epoch}: {val_loss:.4f}")


if __name__ == "__main__":
    train({"width": 64, "rate": 1e-2, "dropout": 0.1})
