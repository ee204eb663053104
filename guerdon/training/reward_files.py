"""Rewards of runs: saved separately from checkpoints, to be loaded by other runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guerdon.config import compose, registry_of, sources
from guerdon.config.schema import RewardConfig
from guerdon.config.yaml_limits import check_resolved
from guerdon.limits import DAMAGE
from guerdon.reward import Reward
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.fit_files import COMPARED, check_fits, is_fit, read_classifier
from guerdon.training.run_folder import RunFolder


def save_reward(folder: RunFolder, step: int, reward: Reward) -> None:
    """Save a reward with its options, in the place of an older one.

    Data that only its run can use, such as the policy's transitions, is left out. The environment's
    own reward is not saved.
    """
    if reward.is_env:
        return
    values = sources.read(folder.path)
    options = {key: values[key] for key in ("reward", "imports") if key in values}
    options = sources.portable(options, folder.path)
    state = {"state": reward.portable_state(), "options": options}
    save_checkpoint(folder.reward, step, state, keep=1)


def check_path(path: str) -> None:
    """Check that ``checkpoint_path`` holds a reward; see `restore_reward`."""
    if is_fit(path):
        return
    try:
        _folder(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"'reward.checkpoint_path': {error}") from error


def restore_reward(reward: Reward, config: RewardConfig) -> None:
    """Load the state that ``checkpoint_path`` names.

    It is a run or its folder ``reward``, whose terms have to be the same, or a fit, for a term
    ``classifier``.
    """
    path = config.checkpoint_path
    assert path is not None
    check_path(path)
    classifiers = [model for model in reward.models if isinstance(model, ClassifierReward)]
    if not is_fit(path):
        _load_run(reward, config, path)
    elif len(classifiers) == 1:
        classifiers[0].load_training_state(read_classifier(path))
    else:
        raise ValueError(
            f"{path} is a fitted classifier, but this run's reward is made of "
            f"{', '.join(reward.terms)}: choose it with reward=classifier"
        )
    for model in classifiers:
        asked = {name: getattr(model.config, name) for name in COMPARED}
        check_fits({**model.meta, "path": path}, asked)
        model.check_good_enough()


def _load_run(reward: Reward, config: RewardConfig, path: str) -> None:
    saved = _read(path, ("state", "options"))
    ours, theirs = (
        ", ".join(
            name if name == options["type"] else f"{name} ({options['type']})"
            for name, options in terms.items()
        )
        for terms in (config.terms, saved["options"]["reward"]["terms"])
    )
    if ours != theirs:
        raise ValueError(
            f"the reward in {path} is made of {theirs}, but this run's of {ours}: take that run's "
            f"reward with --from-reward, or leave out 'reward.checkpoint_path'"
        )
    try:
        reward.load_training_state(saved["state"])
    except DAMAGE as error:
        why = " ".join(part.strip() for part in str(error).splitlines()[:2])
        raise ValueError(
            f"the reward in {path} does not fit this run's ({why}): take that run's options with "
            f"--from-reward, and an environment with the same spaces"
        ) from error


def sections_of(source: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the sections of a source, also of a preset."""
    if sources.is_preset(source):
        return compose(source).model_dump()
    return sources.sections(source)


def with_reward_of(
    values: dict[str, Any], preset: str | None, overrides: Iterable[str], path: str | Path
) -> dict[str, Any]:
    """Return the sections of a config with the reward of a run, frozen; see `guerdon.train`.

    Args:
        values: The sections.
        preset: Name of the preset that they come from, if any.
        overrides: ``key=value``.
        path: The run.
    """
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in ("reward", "reward.type"):
            raise ValueError(f"the reward is that of {path}: leave {override!r} out")
    options = _read(path, ("options",))["options"]
    if preset is not None:
        parts = sources.split_preset(preset, registry_of("policy").names())
        terms = "+".join(options["reward"]["terms"])
        values["run"]["name"] = f"{parts['env']}_{parts['policy']}_{terms}"
    own = values.get("imports") or []
    imports = [*own, *options.get("imports", [])] if isinstance(own, list) else own
    frozen = {"checkpoint_path": str(Path(path).resolve()), "cotrain": False, "pretrain": False}
    for term in options["reward"]["terms"].values():
        config = registry_of("reward").get(term["type"]).Config
        for name in getattr(config, "read_if_cotrained", ()):
            term.pop(name, None)
    return {
        **values,
        "reward": {**options["reward"], **frozen},
        **({"imports": list(dict.fromkeys(imports))} if imports else {}),
    }


def _read(path: str | Path, parts: tuple[str, ...]) -> dict[str, Any]:
    folder = _folder(path)
    saved, _ = load_checkpoint(folder, parts=parts)
    check_resolved(saved["options"], path)
    return {**saved, "options": sources.located(saved["options"], folder.parent)}


def _folder(path: str | Path) -> Path:
    folder, own = Path(path), RunFolder(path).reward
    if own.is_dir():
        folder = own
    if not checkpoint_steps(folder):
        raise FileNotFoundError(
            f"{path} has no reward: give a run that has learned one, its folder 'reward', or the "
            "'reward.save_dir' of a fit (`guerdon reward fit`)"
        )
    return folder
