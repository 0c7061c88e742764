"""Make clinics.csv: 4,385 made-up patients of twelve clinics, with the days of their stay and whether they came back."""

import numpy as np
import pandas as pd

NAMES = ["Aue", "Bonn", "Celle", "Dahme", "Emden", "Fulda", "Gera", "Husum", "Ilmenau", "Jena", "Kiel", "Lahr"]
PATIENTS = [1500, 900, 600, 400, 300, 200, 150, 110, 80, 60, 45, 40]
FEATURES = ["age", "pressure", "glucose", "sodium", "weight", "smoker", "earlier_stays", "dose"]
MEANS, DEVIATIONS = [65, 130, 110, 140, 75, 0.3, 2, 20], [12, 15, 20, 3, 14, 0.46, 1.5, 4]

rng = np.random.default_rng(7)
tables = []
for name, patients in zip(NAMES, PATIENTS, strict=True):
    z = rng.standard_normal((patients, 8))
    z[:, 5] = (rng.random(patients) < 0.3) / 0.46 - 0.3 / 0.46  # smokes or not
    own = rng.normal([1.0, 0.5, 0.5, -0.5, 0.5, 1.0, 1.0, 0.0], [0.15] * 7 + [0.8])  # what a feature means there
    days = 8 + rng.normal(0, 0.5) + z @ own + rng.normal(0, 2, patients)
    risk = -3.5 + rng.normal(0, 0.3) + z @ rng.normal([0.6, 0.0, 0.4, -0.3, 0.0, 0.5, 0.7, 0.0], 0.1)
    again = rng.random(patients) < 1 / (1 + np.exp(-risk))
    table = pd.DataFrame((z * DEVIATIONS + MEANS).round(1), columns=FEATURES)
    table["smoker"] = (z[:, 5] > 0).astype(int)
    table["earlier_stays"] = table.earlier_stays.clip(0).round().astype(int)
    # Of each outcome six tenths are for training, two for validation and two for testing
    order = np.lexsort([rng.random(patients), again])
    table.loc[order, "split"] = np.resize(["train", "test", "train", "val", "train"], patients)
    table.insert(0, "clinic", name)
    tables.append(table.assign(days=days.clip(0.5).round(1), readmitted=np.where(again, "yes", "no")))
pd.concat(tables).to_csv("clinics.csv", index=False)
