"""Tables of results: means, standard deviations, the paper's figures beside them, t-tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ugnn_fast._extras import require
from ugnn_fast.experiments import paper
from ugnn_fast.experiments.models import TITLES
from ugnn_fast.experiments.results import Row

NAMES = {
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "pubmed": "PubMed",
    "amazon_computers": "Amazon Computers",
    "amazon_photo": "Amazon Photo",
    "coauthor_cs": "Coauthor CS",
    "coauthor_physics": "Coauthor Physics",
    "blogcatalog": "BlogCatalog",
    "flickr": "Flickr",
    "air_usa": "Air-USA",
    "mettack_cora": "Cora",
    "mettack_citeseer": "CiteSeer",
    "mettack_pubmed": "PubMed",
}


@dataclass(frozen=True)
class Table:
    """A table with a title, a line on how to read it, and cells of text."""

    title: str
    note: str
    head: list[str]
    body: list[list[str]]

    def markdown(self) -> str:
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.body]
        rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"### {self.title}\n\n{self.note}\n\n{rows}\n"


@dataclass(frozen=True)
class Sample:
    """The runs of one model on one graph."""

    values: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """Standard deviation of a sample."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    def text(self, digits: int = 2) -> str:
        if not self.values:
            return ""
        spread = "" if math.isnan(self.spread) else f" ± {self.spread:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


def sample(rows: Sequence[Row], dataset: str, model: str, *, rate: int = 0, column: str = "test") -> Sample:
    """One column of the runs of a model on a graph, without undefined values."""
    found = (getattr(r, column) for r in rows if (r.dataset, r.rate, r.model) == (dataset, rate, model))
    return Sample([value for value in found if not math.isnan(value)])


def p_value(first: Sample, second: Sample) -> float:
    """Of the two-sample t-test; nan where there is nothing to test."""
    if min(len(first.values), len(second.values)) < 2 or not first.spread + second.spread > 0:
        return math.nan
    return float(require("scipy.stats").ttest_ind(first.values, second.values).pvalue)


def _p_text(first: Sample, second: Sample) -> str:
    p = p_value(first, second)
    return "" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _runs_text(rows: Sequence[Row]) -> str:
    """How many runs there are of each model and graph."""
    counts: dict[tuple, int] = {}
    for row in rows:
        key = row.dataset, row.rate, row.model
        counts[key] = counts.get(key, 0) + 1
    low, high = min(counts.values(), default=0), max(counts.values(), default=0)
    return f"{low} runs" if low == high else f"{low} to {high} runs"


def table2(rows: Sequence[Row]) -> Table | None:
    """Test accuracy of every model on every data set."""
    rows = [row for row in rows if row.dataset in paper.DATASETS]
    models = [model for model in paper.MODELS if any(row.model == model for row in rows)]
    body = []
    means: dict[str, list[float]] = {model: [] for model in models}
    reported: dict[str, list[float]] = {model: [] for model in models}
    for dataset in paper.DATASETS:
        samples = {model: sample(rows, dataset, model) for model in models}
        if not any(s.values for s in samples.values()):
            continue
        line = [NAMES[dataset]]
        for model, s in samples.items():
            value = paper.TABLE2[dataset][paper.MODELS.index(model)]
            line += [s.text(), f"{value:.2f}"]
            means[model].append(s.mean)
            reported[model].append(value)
        line.append(_p_text(samples["appnp"], samples["ada-ugnn"]) if {"appnp", "ada-ugnn"} <= samples.keys() else "")
        body.append(line)
    if not body:
        return None
    last = ["mean"]
    for model in models:
        mean = statistics.fmean(means[model])
        last += ["" if math.isnan(mean) else f"{mean:.2f}", f"{statistics.fmean(reported[model]):.2f}"]
    head = ["data set", *(text for model in models for text in (TITLES[model], "paper")), "p"]
    note = (
        f"Test accuracy in percent, mean ± standard deviation of {_runs_text(rows)}; paper: Ma et al. 2021, Table 2; "
        "p: two-sample t-test between APPNP and ADA-UGNN."
    )
    return Table("Accuracy", note, head, [*body, [*last, ""]])


def table3(rows: Sequence[Row], rule: str) -> Table | None:
    """Test accuracy by local label smoothness. rule: "figures" of the paper (low: < 0.5), or its "text" (<= 0.5)."""
    columns = ("low", "high") if rule == "figures" else ("low_text", "high_text")
    signs = ("< 0.5", ">= 0.5") if rule == "figures" else ("<= 0.5", "> 0.5")
    models = ("appnp", "ada-ugnn")
    rows = [row for row in rows if row.dataset in paper.DATASETS and row.model in models]
    body = []
    for dataset in paper.DATASETS:
        line = [NAMES[dataset]]
        for place, column in enumerate(columns):
            samples = [sample(rows, dataset, model, column=column) for model in models]
            for model, s in enumerate(samples):
                line += [s.text(), f"{paper.TABLE3[dataset][place][model]:.2f}"]
            line.append(_p_text(*samples))
        if any(line[1::5] + line[3::5]):
            body.append(line)
    if not body:
        return None
    head = ["data set"]
    for sign in signs:
        head += [text for model in models for text in (f"{TITLES[model]} {sign}", "paper")] + ["p"]
    note = (
        "Test accuracy in percent of the nodes whose local label smoothness is low and high, an isolated node counting "
        f"as 0; mean ± standard deviation of {_runs_text(rows)}. "
        + (
            "The rule that the paper's figures solve for."
            if rule == "figures"
            else "The rule in the paper's text, which its figures do not follow."
        )
    )
    return Table(f"Accuracy by local label smoothness, {signs[0]} and {signs[1]}", note, head, body)


def robustness(rows: Sequence[Row]) -> Table | None:
    """Test accuracy under Mettack."""
    rows = [row for row in rows if row.dataset in paper.ATTACKED]
    models = [model for model in paper.MODELS if any(row.model == model for row in rows)]
    body = []
    for dataset in paper.ATTACKED:
        for rate in paper.RATES:
            samples = {model: sample(rows, dataset, model, rate=rate) for model in models}
            if any(s.values for s in samples.values()):
                pair = [samples.get(model, Sample([])) for model in ("appnp", "ada-ugnn")]
                body.append([f"{NAMES[dataset]}, {rate} %", *(s.text() for s in samples.values()), _p_text(*pair)])
    if not body:
        return None
    note = (
        f"Test accuracy in percent against the share of edges that Mettack changed, mean ± standard deviation of "
        f"{_runs_text(rows)}; p: two-sample t-test between APPNP and ADA-UGNN."
    )
    return Table("Robustness", note, ["graph", *(TITLES[model] for model in models), "p"], body)


def correlation(rows: Sequence[Row]) -> Table | None:
    """Correlation of ADA-UGNN's C with local label smoothness."""
    graphs = [*((dataset, 0) for dataset in paper.DATASETS)]
    graphs += [(dataset, rate) for dataset in paper.ATTACKED for rate in paper.RATES]
    body = []
    for dataset, rate in graphs:
        s = sample(rows, dataset, "ada-ugnn", rate=rate, column="correlation")
        if s.values:
            name = NAMES[dataset] + (f" of Mettack, {rate} %" if dataset in paper.ATTACKED else "")
            body.append([name, s.text(3)])
    if not body:
        return None
    note = "Pearson's correlation over all nodes, mean ± standard deviation of the runs."
    return Table("Correlation of C with local label smoothness", note, ["graph", "correlation"], body)


def training_time(rows: Sequence[Row]) -> Table | None:
    """Minutes that the runs took of a core, and on what."""
    rows = [row for row in rows if row.dataset in paper.DATASETS]
    models = [model for model in paper.MODELS if any(row.model == model for row in rows)]
    body = []
    total = dict.fromkeys(models, 0.0)
    for dataset in paper.DATASETS:
        minutes = {
            model: sum(row.core_seconds for row in rows if (row.dataset, row.model) == (dataset, model)) / 60
            for model in models
        }
        if any(minutes.values()):
            body.append([NAMES[dataset], *(f"{value:.1f}" if value else "" for value in minutes.values())])
            total = {model: total[model] + minutes[model] for model in models}
    if not body:
        return None
    where = sorted({f"{row.machine}, {row.threads} thread{'s' if row.threads > 1 else ''}" for row in rows})
    note = (
        f"Minutes of a core (time times threads; two cores take half as long) for {_runs_text(rows)} of each model, "
        f"training and evaluation of all epochs; {'; '.join(where)}; "
        f"commits {', '.join(sorted({row.commit for row in rows}))}; {min(row.date for row in rows)[:10]} to "
        f"{max(row.date for row in rows)[:10]}."
    )
    last = ["all", *(f"{value:.1f}" for value in total.values())]
    return Table("Training time", note, ["data set", *(TITLES[model] for model in models)], [*body, last])


def all_tables(rows: Sequence[Row], parts: Sequence[str]) -> dict[str, Table]:
    """Those of the parts that the rows have something for, by name."""
    made = {
        "table2": lambda: table2(rows),
        "table2_time": lambda: training_time(rows),
        "table3": lambda: table3(rows, "figures"),
        "table3_text": lambda: table3(rows, "text"),
        "robustness": lambda: robustness(rows),
        "correlation": lambda: correlation(rows),
    }
    found = {name: make() for name, make in made.items() if name.partition("_")[0] in parts}
    return {name: table for name, table in found.items() if table is not None}
