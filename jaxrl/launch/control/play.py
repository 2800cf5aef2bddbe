"""`jaxrl control play RUN --episodes N [--json] [--video FILE]`: whole episodes of its policy."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.control import algorithms, environments, host, policy, rollout
from jaxrl.control.environment import Environment
from jaxrl.launch.cli import REFUSALS, refused
from jaxrl.record import account


def main(argv: list[str]) -> int:
    """Print the returns; 2 for what is no run, or an environment of other spaces."""
    parser = argparse.ArgumentParser(prog="jaxrl control play", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory of jaxrl control")
    parser.add_argument("--env", default="", help="another environment of the same spaces")
    parser.add_argument("--episodes", type=int, default=10, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the run's seeds (%(default)s)")
    parser.add_argument(
        "--point", default="last", choices=policy.POINTS, help="of the run (%(default)s)"
    )
    parser.add_argument("--start", type=int, default=0, help="seed of the episodes (%(default)s)")
    parser.add_argument("--json", action="store_true", help='print {"returns": [...]} alone')
    parser.add_argument("--video", type=Path, help="film the first episode: .gif, or .mp4")
    parser.add_argument("--trust", action="store_true", help="run the module that the run names")
    flags = parser.parse_args(argv)
    try:
        if flags.episodes < 1:
            raise ValueError(f"episodes={flags.episodes}: choose 1 or more with --episodes")
        returns = play(flags)
    except REFUSALS as error:
        return refused(error)
    if flags.json:
        print(json.dumps({"returns": returns}))
        return 0
    for number, value in enumerate(returns):
        print(f"episode {number}: return {value:.6g}")
    print(f"mean {np.mean(returns):.6g}, standard deviation {np.std(returns):.6g}")
    return 0


def play(flags: argparse.Namespace) -> list[float]:
    """The returns of the episodes."""
    loaded = policy.load(flags.run, flags.seed, flags.point)
    env = environment(loaded, flags)
    if env.host is None:
        if flags.video:
            raise ValueError(
                f"video={str(flags.video)!r}: env={env.name!r} draws no pictures; leave --video "
                "out, or play one of Gymnasium"
            )
        module = algorithms.load(loaded.description["algorithm"])
        config = policy.rebuilt(module.config(), loaded.description["config"])
        algorithm = module.programs(env, config)[loaded.description["phase"]].algorithm
        outcome = rollout.evaluate(
            algorithm.observe(env), algorithm.best, loaded.params,
            jax.random.PRNGKey(flags.start), episodes=flags.episodes, memory=algorithm.memory,
        )  # fmt: skip
        return [float(value) for value in outcome.returns]
    if flags.video:
        check_film(flags.video)
    frames: list[np.ndarray] | None = [] if flags.video else None
    numbers = [host.hash_seed(flags.start, i) for i in range(flags.episodes)]
    key = jax.random.PRNGKey(flags.start)

    def step(t: int, observations: np.ndarray, memories: Any) -> Any:
        return loaded.compiled(jax.random.fold_in(key, t), loaded.params, observations, memories)

    act = host.carry_memory(step, loaded.init(flags.episodes))
    totals = host.play(env, act, numbers, (flags.episodes,), frames)
    if frames is not None:
        film(flags.video, frames)
    return totals[0].tolist()


def environment(loaded: policy.Policy, flags: argparse.Namespace) -> Environment:
    """Where the policy plays.

    Raises:
      ValueError: a module of a run that this account has not started, or other spaces.
    """
    saved = loaded.description
    name, args = flags.env or saved["env"], {} if flags.env else dict(saved["env_args"])
    texts = name.startswith("gym/") and any(isinstance(value, str) for value in args.values())
    imported = not flags.env and (":" in name or texts)
    if imported and not flags.trust and name not in account.known_entries(flags.run):
        raise ValueError(
            f"the run plays env={name!r}, which is imported or takes a text, and this account "
            "has not started the run; accept it with --trust, or name it yourself with --env"
        )
    if flags.video:
        args["render_mode"] = "rgb_array"
    env = environments.get(name, **args)
    layouts = json.loads(json.dumps(dict(env.layouts)))
    fits = env.space == policy.saved_space(saved)
    if not fits or (saved["layouts"] and layouts != saved["layouts"]):
        raise ValueError(
            f"env={name!r} has the sizes {env.space._asdict()} and the policy was trained with "
            f"{saved['space']} in env={saved['env']!r}, or their bounds or parts differ; choose an "
            "environment of the same spaces"
        )
    return env


def check_film(path: Path) -> None:
    """Refuse a film that cannot be written, before anything is played.

    Raises:
      ModuleNotFoundError: a kind of film whose package is not installed.
      ValueError: another ending, or a folder that is not there.
    """
    if path.suffix not in (".gif", ".mp4"):
        raise ValueError(f"video={str(path)!r}: choose a name that ends in .gif or .mp4")
    if not path.parent.is_dir():
        raise ValueError(f"video={str(path)!r}: there is no folder {str(path.parent)!r}; make it")
    if path.suffix == ".mp4" and importlib.util.find_spec("imageio") is None:
        raise ModuleNotFoundError(
            f"video={str(path)!r} needs imageio; install it: pip install 'imageio[ffmpeg]', or "
            "choose a name that ends in .gif"
        )


def film(path: Path, frames: list[np.ndarray]) -> None:
    """Write pictures [H, W, 3] as a film at 30 a second."""
    if path.suffix == ".gif":
        from PIL import Image

        first, *rest = (Image.fromarray(frame) for frame in frames)
        first.save(path, save_all=True, append_images=rest, duration=33, loop=0)
        return
    import imageio.v3 as imageio

    imageio.imwrite(path, np.stack(frames), fps=30)
