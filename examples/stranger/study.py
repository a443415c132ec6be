"""A plain training script: a small network learns scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import trainwright as tw

images, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
images = images.float() / 16
training = TensorDataset(images[:1400], labels[:1400])


def network(config):
    hidden = config["width"]
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(config["dropout"]), nn.Linear(hidden, 10))


def train(trial):
    config = trial.params
    model = network(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["rate"])
    loader = trial.prepare(model, optimizer, DataLoader(training, batch_size=32, shuffle=True)).loader
    for epoch in trial.epochs():
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
        trial.report(val_loss=val_loss)


if __name__ == "__main__":
    space = tw.Space(width=tw.Int(16, 128, log=True), rate=tw.Float(1e-3, 1e-1, log=True), dropout=tw.Float(0, 0.5))
    study = tw.Study(space, "min val_loss", directory="runs/digits")
    study.run(train, trials=12, scheduler=tw.ASHA(max_epochs=9), engine=tw.Local(workers=2))
