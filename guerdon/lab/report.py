"""`write_report`: one HTML page about a run, a fit, or the three stages of `guerdon demo`."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from guerdon.config import sources
from guerdon.config.errors import ConfigError
from guerdon.config.schema import DataCollectionConfig
from guerdon.config.validation import validated
from guerdon.data.batch import Batch, flatten
from guerdon.data.files import atomic_file
from guerdon.data.frames import Frames, read_trajectory
from guerdon.lab import page
from guerdon.lab.curves import LARGEST, Curve, read_metrics, unit_of_steps
from guerdon.limits import DAMAGE, read_text, reading
from guerdon.ops.classification import calibration_curve, ensemble_probability, pr_curve
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint
from guerdon.training.fit import read_frames
from guerdon.training.fit_checks import PROBE_COLUMNS, probe_cells
from guerdon.training.fit_files import CONFIG as FIT_CONFIG
from guerdon.training.fit_files import FitConfig, is_fit, read_classifier
from guerdon.training.replay import collect_frames, load_reward
from guerdon.training.run_folder import RunFolder, read_json
from guerdon.training.workflow import RESULT, WorkflowResult

HOW = (
    "Success is measured without exploration: at the last step of an episode, and at the first "
    "predicted success, where the episode ends for the learner. The environment's reward and "
    "success are not used to train the second policy."
)
# A fall of the true return is a warning above this share of its range, and of its highest value.
FALL, OF_HIGHEST = 0.25, 0.1
FRAMES = 8  # images of each kind
CURVES: dict[str, dict[str, str]] = {
    "True return": {"eval/mean_reward": "evaluation", "rollout/ep_rew_mean": "while training"},
    "Learned return": {"reward/eval_return": "evaluation"},
    "Success": {
        "eval/success_rate": "true, last step",
        "reward/success_rate": "predicted",
        "eval/success_at_prediction": "true, first prediction",
    },
    "Rank correlation of learned and true return": {"reward/rank_correlation": "evaluation"},
    "Episode length": {"eval/mean_ep_length": "evaluation", "rollout/ep_len_mean": "training"},
}
OOD_CURVES = {
    "Share of transitions unlike the fitted data": ("ood_share", "ood_paid"),
    "Shift of well-paid transitions, in standard deviations": ("shift",),
    "Disagreement, as the share of fitted transitions with less": ("disagreement",),
}
FIT_CURVES: dict[str, dict[str, str]] = {
    "Loss": {"train/loss": "training", "reward/loss": "validation"},
    "Validation frames": {
        "reward/pr_auc": "PR-AUC",
        "reward/precision": "precision",
        "reward/recall": "recall",
    },
}
STAGES = (
    ("collect", "eval/success_rate", "environment reward: true, last step"),
    ("learn", "eval/success_rate", "classifier reward: true, last step"),
    ("learn", "reward/success_rate", "classifier reward: predicted"),
    ("learn", "eval/success_at_prediction", "classifier reward: true, first prediction"),
)


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one HTML page with everything in it, and return its path.

    Args:
        folder: Folder of a run, of a fit, or of the three stages of `guerdon demo`.
        out: The file; by default ``report.html`` in the folder.
    """
    folder = Path(folder)
    if (folder / RESULT).is_file():
        title, body = _workflow_page(folder)
    elif (folder / FIT_CONFIG).is_file():
        title, body = f"Classifier {folder.name}", page.render(_fit_sections(folder))
    else:
        run = _described(folder)
        title, body = run.name, page.render(_run_sections(folder, run))
    out = folder / "report.html" if out is None else Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as file:
        file.write(page.document(title, body).encode())
    return out


# --- a run


class Described(NamedTuple):
    """What a page says of the config of a run."""

    name: str
    about: str
    reward_types: list[str]
    checkpoint_path: str | None
    collected: dict[str, str]  # folders of frames, by kind


def _described(folder: Path) -> Described:
    path = RunFolder(folder).existing_config()
    config = sources.read(folder)
    try:
        reward, data = config["reward"], config["reward"]["data_collection"]
        terms, kinds = reward["terms"], ("positive", "negative") if reward["collect_data"] else ()
        named = [
            name if term["weight"] == 1 else f"{name} (weight {term['weight']:g})"
            for name, term in terms.items()
        ]
        return Described(
            name=str(config["run"]["name"]),
            about=f"{config['env']['id']} · {config['policy']['type']} · reward: "
            f"{' + '.join(named)} · seed {config['seed']}",
            reward_types=[term["type"] for term in terms.values()],
            checkpoint_path=reward["checkpoint_path"] and str(reward["checkpoint_path"]),
            collected={kind: str(data[f"{kind}_dir"]) for kind in kinds},
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{path} is not the config of a run: {error!r}") from error


def _run_sections(folder: Path, run: Described, classifier: bool = True) -> page.Sections:
    files, metrics, summary = RunFolder(folder), _metrics(folder), _summary(folder)
    log = read_text(files.log) if files.log.exists() else ""
    named = {**CURVES, **_ood_curves(metrics)}
    unit = unit_of_steps(folder)
    curves = (page.chart(title, _lines(metrics, names), unit) for title, names in named.items())
    path, types = run.checkpoint_path, run.reward_types
    fit = _fit_sections(Path(path)) if classifier and path and is_fit(path) else []
    about = f"{run.about} · {_end(summary)}"
    return [
        ("", page.paragraph(about) + page.cards(_run_numbers(summary, metrics))),
        ("Warnings", page.warning_list([*log_warnings(log), *return_warnings(metrics)])),
        ("Transitions to look at", _alarms(files.alarms)),
        ("Curves", page.charts(curves)),
        ("Videos", page.charts(map(page.video, sorted(files.videos.glob("*.mp4"))))),
        ("Reward", page.metrics_table(metrics, "reward/")),
        ("Training", page.metrics_table(metrics, "train/")),
        ("Collected frames", _collected(run.collected)),
        ("Predicted success of the policy", _predicted(folder) if "classifier" in types else ""),
        ("Classifier", page.render(fit, 3)),
        ("Configuration", _configuration(files.config, files.starts()[-1:])),
    ]


def _ood_curves(metrics: Mapping[str, Curve]) -> dict[str, dict[str, str]]:
    """Return the names of the curves that compare the policy with the fitted data."""
    kinds = {"ood_share": "all", "ood_paid": "well paid", "shift": "", "disagreement": ""}
    found: dict[str, dict[str, str]] = {title: {} for title in OOD_CURVES}
    for name in metrics:
        term, _, kind = name.removeprefix("reward/").rpartition("/")
        for title, shown in OOD_CURVES.items():
            if kind in shown:
                found[title][name] = f"{term} {kinds[kind]}".strip()
    return found


def _alarms(folder: Path) -> str:
    """Return the transitions that alarms saved: images, or numbers."""
    shown = []
    for step in checkpoint_steps(folder):
        try:
            alarm = load_checkpoint(folder, step, parts=("alarm",))[0]["alarm"]
            rows = Batch(alarm["transitions"])
            captions = [f"score {row.score:.2f}, reward {row.rew:.3g}" for row in rows]
            frames = [_images_of(row.obs_next) for row in rows]
            numbers = [
                [str(row.obs), str(row.act), text] for row, text in zip(rows, captions, strict=True)
            ]
            title = f"Step {step:,}: {alarm['text']}"
            images = page.images(title, frames, captions) if all(frames) else ""
        except (*DAMAGE, OSError) as error:
            shown.append(page.paragraph(f"The alarm of step {step:,} cannot be shown: {error}."))
            continue
        table = page.table(numbers, ("observation", "action", ""))
        shown.append(images or page.paragraph(title) + table)
    return "".join(shown)


def _images_of(obs: Any) -> dict[str, np.ndarray]:
    """Return the images of an observation by camera, channels first."""
    parts = {".".join(path): np.asarray(leaf) for path, leaf in flatten({"obs": obs})}
    images = {key: part for key, part in parts.items() if part.ndim == 3 and part.dtype == np.uint8}
    return {
        key: part if part.shape[0] <= part.shape[-1] else np.moveaxis(part, -1, 0)
        for key, part in images.items()
    }


def _metrics(folder: Path) -> dict[str, Curve]:
    return read_metrics(folder) if RunFolder(folder).metrics.is_file() else {}


def _summary(folder: Path) -> dict[str, Any]:
    return read_json(RunFolder(folder).summary) or {}


def _lines(metrics: Mapping[str, Curve], names: Mapping[str, str]) -> dict[str, Curve]:
    return {label: metrics[name] for name, label in names.items() if name in metrics}


def _end(summary: Mapping[str, Any]) -> str:
    reason = summary.get("stop_reason")
    if reason == "interrupted":
        return "interrupted"
    return f"stopped at {reason}" if reason else "has not ended"


def _run_numbers(summary: Mapping[str, Any], metrics: Mapping[str, Curve]) -> list[tuple[str, str]]:
    last = {name: curve.values[-1] for name, curve in metrics.items() if len(curve.values)}
    found: list[tuple[str, Any, Callable[[Any], str]]] = [
        ("True return", last.get("eval/mean_reward"), page.number),
        ("Best policy, true return", last.get("eval/best_mean_reward"), page.number),
        ("Learned return", last.get("reward/eval_return"), page.number),
        ("True success, last step", last.get("eval/success_rate"), "{:.0%}".format),
        ("Predicted success", last.get("reward/success_rate"), "{:.0%}".format),
        ("Predicted and true", last.get("eval/success_at_prediction"), "{:.0%}".format),
        ("Steps", summary.get("env_steps"), "{:,}".format),
        ("Seconds", summary.get("wall_seconds"), "{:,.0f}".format),
        ("Steps a second", summary.get("fps"), "{:,.0f}".format),
    ]
    numbers: Any = (int, float, np.floating)  # a damaged summary has others
    return [
        (name, form(value))
        for name, value, form in found
        if isinstance(value, numbers) and abs(value) <= LARGEST
    ]


def log_warnings(log: str) -> list[str]:
    """Return the warnings of ``log.txt``; of those that differ only in numbers the newest."""
    found: dict[str, str] = {}
    for line in log.splitlines():
        text = re.sub(r"^[\d-]+ [\d:]+ ", "", line)  # date and time
        if re.match(r"step \d+: |Warning: |nothing was learned", text):
            found[re.sub(r"\d+", "", text)] = text.removeprefix("Warning: ")
    return list(found.values())


def return_warnings(metrics: Mapping[str, Curve]) -> list[str]:
    """Return a warning if the learned return rises while the true one falls."""
    true, learned = (
        dict(zip(*metrics.get(name, ((), ())), strict=True))
        for name in ("eval/mean_reward", "reward/eval_return")
    )
    steps = [step for step in true if step in learned]
    if not steps:
        return []
    best, last = max(steps, key=true.__getitem__), steps[-1]
    fall, span = true[best] - true[last], true[best] - min(true.values())
    if fall <= max(FALL * span, OF_HIGHEST * abs(true[best])) or learned[last] <= learned[best]:
        return []
    returns = [page.number(each[step]) for each in (learned, true) for step in (best, last)]
    return [
        "from step {:,.0f} to {:,.0f} the learned return rises from {} to {}, but the true return "
        "falls from {} to {}: the policy may exploit the reward".format(best, last, *returns)
    ]


def _collected(folders: Mapping[str, str]) -> str:
    """Return the last frames of trajectories that the run collected, if they are still there."""
    shown = []
    for kind, folder in folders.items():
        files = sorted(Path(folder).glob("*.np[yz]"))[-FRAMES:]
        try:
            parts = [read_trajectory(path).images for path in files]
        except (OSError, ValueError) as error:
            return page.paragraph(f"The frames cannot be shown: {error}.")
        frames = [{key: part[-1] for key, part in each.items()} for each in parts]
        shown.append(page.images(f"Last frames of {kind} trajectories", frames))
    return "".join(shown)


def _predicted(folder: Path) -> str:
    """Run the best policy, and return the first predicted success of each episode."""
    try:
        model = load_reward(folder).success
        with TemporaryDirectory() as out:
            options = {key: model.meta["model"][key] for key in ("image_keys", "image_size")}
            options |= {f"{kind}_dir": f"{out}/{kind}" for kind in ("positive", "negative")}
            collect_frames(folder, validated(DataCollectionConfig, options), FRAMES)
            played = [read_trajectory(path) for path in sorted(Path(out).glob("*/*.npz"))]
    except Exception as error:  # of any environment
        return page.paragraph(f"The policy cannot be played here: {error}.")
    frames, captions, wrong = [], [], []
    for each in played:
        scores = model.probability(each.images)
        success = (scores >= model.threshold)[:, None]
        rows, first = np.ones_like(success), np.arange(len(scores))[:, None] == 0
        held, *_ = model.new_memory(1).follow(success, success, rows, first, model.config.hold)
        for step in np.flatnonzero(held)[:1]:
            frames.append({key: part[step] for key, part in each.images.items()})
            captions.append(_caption(scores[step], each.labels[step]))
            wrong.append(each.labels[step] < 0.5)
    how = page.paragraph(
        f"The classifier predicts success in {len(frames)} of {len(played)} episodes of the best "
        f"policy (threshold {model.threshold:.3f})."
    )
    return how + page.images("The first predicted success of each", frames, captions, wrong)


def _caption(score: float, label: float) -> str:
    return f"{score:.3f} {'success' if label >= 0.5 else 'no success'}"


def _configuration(file: Path, starts: Sequence[Mapping[str, Any]] = ()) -> str:
    machine = "\n".join(f"{key}: {value}" for start in starts for key, value in start.items())
    found = page.details(file.name, read_text(file))
    return found + (page.details("Command, versions and machine", machine) if machine else "")


# --- a fit


def _fit_sections(folder: Path) -> page.Sections:
    with reading(folder):
        return _sections_of_fit(folder)


def _sections_of_fit(folder: Path) -> page.Sections:
    meta, root = read_classifier(folder)["meta"], folder
    if not (root / FIT_CONFIG).is_file():
        root = folder.parent  # of one of its checkpoints
    metrics, summary = _metrics(root), _summary(root)
    found, warned = meta.get("test", meta["validation"]), summary.get("warnings")
    labels = np.asarray(meta["held_out"]["labels"], bool)
    scores = ensemble_probability(meta["held_out"]["logits"], meta["temperature"])
    curves = [
        page.chart(title, _lines(metrics, names), "gradient steps")
        for title, names in FIT_CURVES.items()
    ]
    precise = {"all thresholds": Curve(*pr_curve(scores, labels))}
    if found["precision"] is not None:  # None if no frame passes the threshold
        point = np.array([[found["recall"]], [found["precision"]]])
        precise["the chosen one"] = Curve(*point)
    calibrated = {
        "share of frames with success": Curve(*calibration_curve(scores, labels)),
        "perfect": Curve(np.arange(2.0), np.arange(2.0)),
    }
    curves.append(page.chart("Precision over recall", precise, "recall", (0, 1)))
    curves.append(page.chart("Calibration", calibrated, "predicted probability", (0, 1)))
    about = (
        f"{found['frames']:,} frames of {found['episodes']:,} test episodes, "
        f"{found['base_rate']:.1%} with success · seed {meta['seed']}"
    )
    return [
        ("", page.paragraph(about) + page.cards(_fit_numbers(meta))),
        ("Warnings", page.warning_list([*map(str, warned)] if isinstance(warned, list) else [])),
        ("Curves", page.charts(curves)),
        ("Changed frames", _probes(summary.get("probes"))),
        ("Frames", _frames(meta, scores, labels, summary.get("labels"))),
        ("Configuration", _configuration(root / FIT_CONFIG)),
    ]


def _fit_numbers(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    found, names = (
        meta.get("test", meta["validation"]),
        {
            "precision": "Precision",
            "recall": "Recall",
            "false_positive_rate": "False positives, frames",
            "episode_false_positive_rate": "False positives, episodes",
            "calibration_error": "Calibration error",
        },
    )
    shares = [(name, _percent(found, key, 1)) for key, name in names.items()]
    return [
        ("PR-AUC", _numbers(found, "pr_auc")),
        *shares,
        ("Threshold", _numbers(meta, "threshold")),
    ]


def _probes(rows: Any) -> str:
    """Return the table of changed frames."""
    if not isinstance(rows, list) or not rows:
        return ""
    how = page.paragraph(
        "Mean predicted success of test frames after a change, and the share accepted at the "
        "threshold. The last column says whether training uses changes of this kind."
    )
    return how + page.table(map(probe_cells, rows), PROBE_COLUMNS)


def _suspects(found: Any, frames: Frames) -> str:
    """Return the frames whose labels look wrong."""
    if not isinstance(found, dict):
        return page.paragraph("Labels were not checked by cross-validation.")
    how = page.paragraph(
        f"Of {found['checked']:,} labels, {found['suspected']:.1%} look wrong to small classifiers "
        "that were fitted to other episodes. The most suspected ones, with the probability of "
        "success and the label:"
    )
    shown, captions = [], []
    for each in found["frames"]:
        shown.append({key: part[each["row"]] for key, part in frames.images.items()})
        place = f" · {Path(each['file']).name}, frame {each['frame']}" if each["file"] else ""
        captions.append(_caption(each["probability"], each["label"]) + place)
    return how + page.images("Suspected labels", shown, captions, [True] * len(shown))


def _frames(meta: Mapping[str, Any], scores: np.ndarray, labels: np.ndarray, suspects: Any) -> str:
    """Return mistakes and predicted successes in test episodes, and suspected labels."""
    data = {key: meta["data"][key] for key in ("positive_dir", "negative_dir")}
    model = {key: meta["model"][key] for key in ("image_keys", "image_size")}
    try:
        frames = read_frames(validated(FitConfig, {"reward": {"data": data, "model": model}}))
    except (OSError, ValueError) as error:
        return page.paragraph(f"The frames cannot be shown: {error}.")
    if frames.hash != meta["data"]["hash"]:
        return page.paragraph("The frames cannot be shown: they have changed since the fit.")
    # Older versions had no test.
    shares = meta["split"] if isinstance(meta["split"], list) else [meta["split"]]
    rows = frames.split(np.random.default_rng(meta["seed"]), *shares)[1]
    passes = scores.astype(np.float32) >= meta["threshold"]  # the precision of the networks
    order = np.argsort(-scores, kind="stable")
    kinds = {
        "No success, the highest probabilities": order[~labels[order]],
        "Success, the lowest probabilities": order[labels[order]][::-1],
        "Predicted success, drawn at random": np.random.default_rng(0).permutation(
            np.flatnonzero(passes)
        ),
    }
    shown = []
    for title, found in kinds.items():
        chosen = found[:FRAMES]
        parts = [{key: part[rows[i]] for key, part in frames.images.items()} for i in chosen]
        captions = [_caption(scores[i], labels[i]) for i in chosen]
        shown.append(page.images(title, parts, captions, (passes != labels)[chosen].tolist()))
    how = page.paragraph(
        "Below each frame: its predicted probability of success, and its label. A red border is a "
        f"mistake at the threshold {meta['threshold']:.3f}."
    )
    return how + "".join(shown) + _suspects(suspects, frames)


# --- the three stages


def _workflow_page(folder: Path) -> tuple[str, str]:
    try:
        result = WorkflowResult(**(read_json(folder / RESULT) or {}))
        rows = workflow_table(result)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{folder / RESULT} is damaged: {error!r}") from error
    metrics = {stage: _metrics(folder / stage) for stage in ("collect", "learn")}
    lines = {label: metrics[stage][name] for stage, name, label in STAGES if name in metrics[stage]}
    about = (
        "A policy was trained on the environment's reward and its camera images were saved, a "
        "classifier was fitted to them, and a new policy was trained on that classifier alone. "
        f"Seed {result.seed}."
    )
    sections = {"The classifier": _fit_sections(folder / "classifier")}
    for title, stage in (
        ("The policy trained on the classifier alone", "learn"),
        ("The policy that collected the images", "collect"),
    ):
        run = _described(folder / stage)
        sections[title] = _run_sections(folder / stage, run, classifier=False)
    shown = page.charts([page.table(rows), page.chart("Success", lines, limits=(0, 1))])
    first = page.paragraph(about) + shown + page.paragraph(HOW)
    stages = [(title, page.render(found, 3)) for title, found in sections.items()]
    return "A reward learned from images", page.render([("", first), *stages])


def workflow_table(result: WorkflowResult) -> list[tuple[str, str]]:
    """Return the results of the three stages, as names and values."""
    fit, collect, learn, kept = result.fit, result.collect, result.learn, result.trajectories
    success = "eval_success_rate"
    return [
        ("Trajectories with and without success", f"{kept['positive']}, {kept['negative']}"),
        ("Classifier on test episodes: PR-AUC", _numbers(fit, "pr_auc")),
        ("  precision, recall at its threshold", _numbers(fit, "precision", "recall")),
        ("  calibration error", _numbers(fit, "calibration_error")),
        ("True success at the last step, no exploration:", ""),
        (f"  environment reward, {collect['env_steps']:,} steps", _percent(collect, success)),
        (f"  classifier alone, {learn['env_steps']:,} steps", _percent(learn, success)),
        ("Predicted success, classifier alone", _percent(learn, "eval_model_success_rate")),
        ("  true success at the first prediction", _percent(learn, "eval_success_at_prediction")),
        ("Seconds per stage", " + ".join(f"{each:.0f}" for each in result.seconds.values())),
    ]


def _numbers(fit: Mapping[str, Any], *keys: str) -> str:
    return ", ".join("-" if fit[key] is None else f"{fit[key]:.3f}" for key in keys)


def _percent(found: Mapping[str, Any], key: str, digits: int = 0) -> str:
    return "-" if found.get(key) is None else f"{found[key]:.{digits}%}"
