"""Denoises two signals by every regulariser: an image on a grid, and the class labels on Cora.

    python examples/denoise.py --out runs/denoise

Writes denoise.png and denoise.csv. The strength c of each regulariser is the best of a sweep, judged by the clean
signal: this compares what regularisers can do, not how to choose c.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from tqdm import tqdm

import ugnn_fast as uf
from ugnn_fast import regularizers, solvers

STRENGTHS = [0.2 * 2**k for k in range(9)]  # 0.2 .. 51.2
QUICK_STRENGTHS = [0.2, 1.6]
ROUND = 0.1  # total variation is smooth within this distance


class Problem(NamedTuple):
    name: str
    title: str
    graph: uf.Graph
    clean: Tensor  # [N, D]
    noisy: Tensor  # [N, D]
    labels: Tensor | None  # [N], where the signal says the class


class Method(NamedTuple):
    name: str
    regularizer: Callable[[Problem, float], regularizers.Regularizer]
    solver: Callable[[Problem, float], solvers.Solver]


class Result(NamedTuple):
    problem: str
    method: str
    c: float | None
    rmse: float
    accuracy: float | None
    f: Tensor


def image(size: int) -> Tensor:
    """A disc, a rectangle and a ramp, [size, size]."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    out = torch.full((size, size), 0.15)
    out[((x - 0.32) ** 2 + (y - 0.34) ** 2).sqrt() < 0.22] = 1.0
    out[(x > 0.62) & (x < 0.9) & (y > 0.14) & (y < 0.5)] = 0.65
    ramp = (y > 0.68) & (y < 0.9) & (x > 0.12) & (x < 0.88)
    out[ramp] = x[ramp]
    return out


def grid_problem(size: int, generator: torch.Generator) -> Problem:
    node = torch.arange(size * size).reshape(size, size)
    right = torch.stack([node[:, :-1].flatten(), node[:, 1:].flatten()])
    down = torch.stack([node[:-1].flatten(), node[1:].flatten()])
    graph = uf.Graph.from_edge_index(torch.cat([right, down], dim=1), size * size, symmetrize=True)
    clean = image(size).reshape(-1, 1)
    return Problem(
        "grid",
        "Grid: an image with noise",
        graph,
        clean,
        clean + 0.25 * torch.randn(clean.shape, generator=generator),
        None,
    )


def cora_problem(generator: torch.Generator) -> Problem:
    data = uf.datasets.load("cora")
    clean = torch.nn.functional.one_hot(data.y).float()
    noisy = clean + 0.8 * torch.randn(clean.shape, generator=generator)
    title = "Cora: class labels with noise (rows: every eighth node, by class; columns: classes)"
    return Problem("Cora", title, data.graph, clean, noisy, data.y)


def first_guess(problem: Problem) -> Tensor:
    """What the adaptive weights look at: the noisy signal shows its noise rather than its borders."""
    return solvers.ConjugateGradient(1e-4)(problem.graph, problem.noisy, regularizers.Laplacian(2.0, normalized=False))


def adaptive(problem: Problem, c: float) -> regularizers.Regularizer:
    """C_i is small where the neighbours of i differ."""
    variance = uf.neighbor_var(problem.graph, first_guess(problem)).sum(1)
    return regularizers.AdaptiveLaplacian(c / (1 + 4 * variance / variance.mean()), normalized=False)


def edges(problem: Problem, c: float) -> regularizers.Regularizer:
    """C_ij is small where i and j differ."""
    i, j = problem.graph.edge_index
    guess = first_guess(problem)
    distance = (guess[i] - guess[j]).square().sum(1)
    return regularizers.EdgeLaplacian(c / (1 + 4 * distance / distance[i != j].mean()), normalized=False)


def total_variation(problem: Problem, c: float) -> regularizers.Regularizer:
    """c times the sum of |F_i - F_j| over edges, rounded off near 0 so that a gradient step fits."""

    def energy(f: Tensor, graph: uf.Graph) -> Tensor:
        i, j = graph.edge_index
        return c / 2 * (ROUND**2 + (f[i] - f[j]).square().sum(-1)).sqrt().sum()  # both directions are stored

    return regularizers.Energy(energy)


def methods(steps: int) -> list[Method]:
    def exact(problem: Problem, c: float) -> solvers.Solver:
        return solvers.ConjugateGradient(1e-4)

    def descent(problem: Problem, c: float) -> solvers.Solver:
        # an edge bends by at most c / ROUND, so that 2 + 2 c d_i / ROUND on the diagonal bounds the second derivative
        return solvers.GradientDescent(steps, step_size=1 / (2 + 2 * c / ROUND * problem.graph.degree))

    def plain(problem: Problem, c: float) -> regularizers.Regularizer:
        return regularizers.Laplacian(c, normalized=False)

    return [
        Method("Laplacian", plain, exact),
        Method("AdaptiveLaplacian", adaptive, exact),
        Method("EdgeLaplacian", edges, exact),
        Method("PairNorm", lambda p, c: regularizers.PairNorm(c, 0.3 / p.graph.num_nodes), exact),
        Method("DropEdge", lambda p, c: regularizers.DropEdge(c, 0.3, normalized=False, seed=0), exact),
        Method("TrendFilter", lambda p, c: regularizers.TrendFilter(c), lambda p, c: solvers.PrimalDual(steps)),
        Method("Energy: total variation", total_variation, descent),
    ]


def judged(problem: Problem, method: str, c: float | None, f: Tensor) -> Result:
    rmse = (f - problem.clean).square().mean().sqrt().item()
    accuracy = None if problem.labels is None else (f.argmax(1) == problem.labels).float().mean().item()
    return Result(problem.name, method, c, rmse, accuracy, f)


def denoise(problem: Problem, steps: int, strengths: list[float], bar: tqdm) -> list[Result]:
    """The noisy signal, and of each method the best of the sweep."""
    results = [judged(problem, "noisy", None, problem.noisy)]
    for method in methods(steps):
        tried = []
        for c in strengths:
            bar.set_description(f"{problem.name}, {method.name}", refresh=False)
            f = method.solver(problem, c)(problem.graph, problem.noisy, method.regularizer(problem, c))
            tried.append(judged(problem, method.name, c, f))
            bar.update()
        results.append(min(tried, key=lambda result: result.rmse))
    return results


def draw(problems: list[Problem], results: dict[str, list[Result]], size: int) -> Figure:
    """For each problem two rows: clean, noisy, the methods, and their errors."""
    figure = Figure(figsize=(12.5, 5.6 * len(problems)), dpi=80, layout="constrained")
    for part, problem in zip(figure.subfigures(len(problems), 1, squeeze=False)[:, 0], problems, strict=True):
        axes = part.subplots(2, 5).flatten()
        found = results[problem.name]
        shown = [("clean", problem.clean), *((result.method, result.f) for result in found)]
        for place, (name, f) in zip(axes, shown, strict=False):
            if problem.labels is None:
                place.imshow(f.reshape(size, size), cmap="viridis", vmin=-0.1, vmax=1.1)
            else:
                # a row per node, every eighth, sorted by class; a column per class
                rows = problem.labels.argsort(stable=True)[::8]
                place.imshow(f[rows], cmap="viridis", vmin=-0.2, vmax=1.0, aspect="auto", interpolation="nearest")
            place.set(xticks=[], yticks=[])
            place.set_title(name, fontsize=10)
        for place, result in zip(axes[1:], found, strict=False):
            share = "" if result.accuracy is None else f"\nclass right: {100 * result.accuracy:.0f} %"
            strength = "" if result.c is None else f"c = {result.c:g}, "
            place.set_xlabel(f"{strength}RMSE {result.rmse:.3f}{share}", fontsize=8.5)
        bars(axes[-1], found)
        part.suptitle(problem.title, fontweight="bold")
    return figure


def bars(place, found: list[Result]) -> None:
    names = [result.method.partition(":")[2].strip() or result.method for result in found]
    best = min(result.rmse for result in found)
    colors = ["#cfcfcf" if r.method == "noisy" else "#f2b45c" if r.rmse == best else "#a9c8ea" for r in found]
    place.barh(range(len(found)), [result.rmse for result in found], color=colors)
    for row, name in enumerate(names):
        place.text(0.01 * found[0].rmse, row, name, va="center", fontsize=8)
    place.set_yticks([])
    place.invert_yaxis()
    place.spines[["top", "right", "left"]].set_visible(False)
    place.set_title("RMSE", fontsize=10)
    place.tick_params(axis="x", labelsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/denoise"), help="folder for the picture and the table")
    parser.add_argument("--size", type=int, default=48, help="side of the grid")
    parser.add_argument("--steps", type=int, default=200, help="of the solvers that count steps")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--quick", action="store_true", help="two values of c in place of nine")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(arguments.seed)
    problems = [grid_problem(arguments.size, generator), cora_problem(generator)]
    strengths = QUICK_STRENGTHS if arguments.quick else STRENGTHS
    results = {}
    with tqdm(total=len(problems) * len(methods(1)) * len(strengths), unit="solve", dynamic_ncols=True) as bar:
        for problem in problems:
            results[problem.name] = denoise(problem, arguments.steps, strengths, bar)

    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [result[:-1] for found in results.values() for result in found]
    with (arguments.out / "denoise.csv").open("w", newline="") as file:
        csv.writer(file).writerows([Result._fields[:-1], *rows])
    picture = arguments.out / "denoise.png"
    draw(problems, results, arguments.size).savefig(picture)
    # a palette takes a third of the space
    Image.open(picture).convert("RGB").quantize(255).save(picture, optimize=True)
    for name, method, c, rmse, accuracy in rows:
        strength, share = "" if c is None else f"{c:g}", "" if accuracy is None else f"{100 * accuracy:.1f} %"
        print(f"{name:5} {method:24} c {strength:6} RMSE {rmse:.4f}  {share}")
    print(f"written: {picture}, {arguments.out / 'denoise.csv'}")


if __name__ == "__main__":
    main()
