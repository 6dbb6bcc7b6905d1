"""Arguments into one call per command."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_type_hints

import typer

from partlabel import __version__, simulate, terminal
from partlabel.errors import PartlabelError
from partlabel.files import refuse_existing
from partlabel.readers import READERS, images_found, import_labels
from partlabel.readers.base import split_and_file
from partlabel.store import LabelStore
from partlabel.summary import summarise

# typer brings its own copy of click or uses the installed one, by version; ask it for the class.
_ClickError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="Train, evaluate and explain multi-label classifiers when most labels are unknown.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
import_app = typer.Typer(
    help="Turn annotation files into a label store.", no_args_is_help=True, rich_markup_mode=None
)
simulate_app = typer.Typer(
    help="Make partial labels from complete ones.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(import_app, name="import")
app.add_typer(simulate_app, name="simulate")

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="the store to write; default: NAME.labels here")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="replace what is at --out")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="same seed, same result")]
StoreArgument = Annotated[
    Path, typer.Argument(help="a store with complete (or many) labels", metavar="STORE")
]
SplitOption = Annotated[str | None, typer.Option("--split", help="take only this split")]


def _version(asked: bool) -> None:
    if asked:
        terminal.note(f"partlabel {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


@app.command()
def info(
    store: Annotated[Path, typer.Argument(help="a store folder", metavar="STORE")],
    as_json: Annotated[bool, typer.Option("--json", help="print json")] = False,
) -> None:
    """Say what is in a store."""
    found = summarise(LabelStore.open(store))
    found["bytes_on_disk"] = sum(file.stat().st_size for file in store.iterdir())
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        terminal.summary(str(store), found)


def _add_importer(name: str, reader: Callable[..., LabelStore]) -> None:
    """Make a command from a reader: its arguments and options, and those every format has."""

    def command(
        *,
        out: OutOption = None,
        images: Annotated[
            Path | None,
            typer.Option(
                "--images",
                help="folder with the images; default: beside the label files",
                exists=True,
                file_okay=False,
            ),
        ] = None,
        path_template: Annotated[
            str | None,
            typer.Option(
                "--path-template", help="image path from id and split, as '{split}/{id:016x}.jpg'"
            ),
        ] = None,
        val: Annotated[
            float | None,
            typer.Option("--val", help="put this share of the images into split 'val'"),
        ] = None,
        seed: SeedOption = 0,
        strict: Annotated[
            bool, typer.Option("--strict", help="refuse labels annotated both present and absent")
        ] = False,
        overwrite: OverwriteOption = False,
        **own: Any,
    ) -> None:
        sources = own.pop(source_name)
        target = out or _default_out(sources)
        with terminal.ReadingProgress() as progress:
            saved = import_labels(
                name,
                sources,
                out=target,
                images=images,
                path_template=path_template,
                val=val,
                seed=seed,
                strict=strict,
                overwrite=overwrite,
                progress=progress,
                **own,
            )
        for path, store in saved.items():
            _report(path, store)

    hints = get_type_hints(reader, include_extras=True)
    parameters = list(inspect.signature(reader).parameters.values())[1:]
    source_name = parameters[0].name
    common = [
        p
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]
    own_parameters = [_as_option(parameter, hints[parameter.name]) for parameter in parameters]
    signature = inspect.Signature([*own_parameters, *common])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    command.__doc__ = reader.__doc__
    import_app.command(name)(command)


def _as_option(parameter: inspect.Parameter, hint: Any) -> inspect.Parameter:
    """A reader's parameter as typer wants it: the annotation's text becomes the help."""
    kind, text = get_args(hint)
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    made = typer.Option(help=text) if keyword else typer.Argument(help=text, show_default=False)
    return parameter.replace(annotation=Annotated[kind, made], kind=parameter.KEYWORD_ONLY)


for _name, _reader in READERS.items():
    _add_importer(_name, _reader)


def _default_out(sources: list[str] | list[Path] | Path) -> Path:
    first = sources[0] if isinstance(sources, list) else sources
    path = split_and_file(str(first))[1]
    name = path.resolve().name.removesuffix(".gz")
    stem = (
        name.rsplit(".", 1)[0]
        if path.suffix in (".gz", ".csv", ".tsv", ".json", ".parquet", ".labels")
        else name
    )
    return Path(f"{stem}-merged.labels" if path.suffix == ".labels" else f"{stem}.labels")


def _report(path: Path, store: LabelStore) -> None:
    found = summarise(store)
    unknown = f"{found['unknown']:,} unknown ({1 - found['known_share']:.2%})"
    terminal.note(
        f"{path}: {found['images']:,} images, {found['classes']:,} classes, {found['positives']:,} positives, "
        f"{found['negatives']:,} negatives, {unknown}"
    )
    for text in found["notes"]:
        terminal.note(f"note: {text}")
    for text in found["warnings"]:
        terminal.warning(text)
    there, looked_for = images_found(store)
    sampled = " (a sample)" if looked_for < len(store) else ""
    text = f"{there:,} of {looked_for:,} images{sampled} found in {found['image_root']}"
    if not looked_for:
        terminal.note("note: the store has no image paths; --path-template can make them from ids")
    elif there == looked_for:
        terminal.note(text)
    else:
        example = store.images.paths([0])[0]
        terminal.warning(
            f"{text}; looked for {example} and the like, see --images and --path-template"
        )


def _simulated(
    store: Path,
    split: str | None,
    out: Path | None,
    overwrite: bool,
    name: str,
    make: Callable[[LabelStore], LabelStore],
) -> None:
    target = out or Path(f"{store.resolve().name.removesuffix('.labels')}-{name}.labels")
    refuse_existing(target, overwrite=overwrite)
    source = LabelStore.open(store)
    made = make(source if split is None else source.split(split))
    made.save(target, overwrite=overwrite)
    found = summarise(made)
    terminal.note(
        f"{target}: {found['images']:,} images, {found['positives']:,} positives, {found['negatives']:,} negatives, "
        f"{found['known_share']:.2%} of the labels known"
    )
    for text in found["warnings"]:
        terminal.warning(text)


@simulate_app.command("fpc")
def _fpc(
    store: StoreArgument,
    *,
    per_class: Annotated[
        int, typer.Option("--per-class", help="positives, and negatives, to keep of each class")
    ],
    seed: SeedOption = 0,
    split: SplitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Keep a fixed number of positives and of negatives per class."""
    make = lambda full: simulate.fixed_per_class(full, per_class=per_class, seed=seed)  # noqa: E731
    _simulated(store, split, out, overwrite, f"fpc{per_class}-seed{seed}", make)


@simulate_app.command("rps", hidden=True)
@simulate_app.command("rpa")
def _rpa(
    store: StoreArgument,
    *,
    drop: Annotated[
        float, typer.Option("--drop", help="probability that an annotation is dropped")
    ],
    seed: SeedOption = 0,
    split: SplitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Drop each annotation with a probability (alias rps)."""
    make = lambda full: simulate.random_per_annotation(full, drop=drop, seed=seed)  # noqa: E731
    _simulated(store, split, out, overwrite, f"rpa{drop:g}-seed{seed}", make)


@simulate_app.command("single-positive")
def _single(
    store: StoreArgument,
    *,
    seed: SeedOption = 0,
    split: SplitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Keep one positive per image; everything else is unknown."""
    make = lambda full: simulate.single_positive(full, seed=seed)  # noqa: E731
    _simulated(store, split, out, overwrite, f"single-seed{seed}", make)


@simulate_app.command("drop-positives")
def _drop(
    store: StoreArgument,
    *,
    keep: Annotated[float, typer.Option("--keep", help="share of the positives to keep")],
    rest: Annotated[
        Literal["unknown", "negative"], typer.Option("--rest", help="what everything else becomes")
    ] = "unknown",
    seed: SeedOption = 0,
    split: SplitOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Keep a share of the positives; all else is unknown, or called negative."""
    make = lambda full: simulate.drop_positives(full, keep=keep, rest=rest, seed=seed)  # noqa: E731
    _simulated(store, split, out, overwrite, f"keep{keep:g}-{rest}-seed{seed}", make)


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line and exit code 2."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except PartlabelError as error:
        terminal.error(str(error))
        code = 2
    except _ClickError as error:
        terminal.error(_usage(error))
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        terminal.error("interrupted; nothing was written, what was there before is untouched")
        code = 130
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python complains at exit
        code = 1
    raise SystemExit(code or 0)


def _usage(error: _ClickError) -> str:
    command = (
        error.ctx.command_path if getattr(error, "ctx", None) else "partlabel"
    )
    return f"{error.format_message().rstrip('.')}; see {command} --help"


def _terminate(number: int, frame: object) -> NoReturn:
    """Leave through the clean-up of whoever is writing."""
    raise SystemExit(128 + number)
