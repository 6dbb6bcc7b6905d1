"""The commands that make and show label stores: import, simulate, info."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from partlabel import simulate, terminal
from partlabel.folder import refuse_existing
from partlabel.readers import READERS, images_found, import_labels
from partlabel.readers.base import split_and_file
from partlabel.store import LabelStore
from partlabel.summary import summarise

import_app = typer.Typer(
    help="Turn annotation files into a label store.", no_args_is_help=True, rich_markup_mode=None
)
simulate_app = typer.Typer(
    help="Make partial labels from complete ones.", no_args_is_help=True, rich_markup_mode=None
)

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="the store to write; default: NAME.labels here")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="replace what is at --out")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="same seed, same result")]


def info(
    store: Annotated[Path, typer.Argument(help="a store folder", metavar="STORE")],
    as_json: Annotated[bool, typer.Option("--json", help="print json")] = False,
) -> None:
    """Say what is in a store."""
    found = summarise(LabelStore.open(store))
    found["bytes_on_disk"] = sum(file.stat().st_size for file in store.iterdir())
    if as_json:
        terminal.json_text(found)
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
        _report_images(saved[target])

    source_name = list(inspect.signature(reader).parameters)[1]
    _with_options_of(command, reader, own=slice(1, None))
    import_app.command(name)(command)


def _with_options_of(
    command: Callable[..., None],
    function: Callable[..., LabelStore],
    *,
    own: slice,
    leave_out: Collection[str] = (),
) -> None:
    """Put a library function's parameters in place of the command's ``**own``."""
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[own]
    taken = [_as_option(p, hints[p.name]) for p in parameters if p.name not in leave_out]
    common = inspect.signature(command, eval_str=True).parameters.values()
    arguments = [p.replace(kind=p.KEYWORD_ONLY) for p in common if p.kind is not p.VAR_KEYWORD]
    signature = inspect.Signature(
        sorted(
            [*taken, *arguments], key=lambda p: isinstance(_typer_info(p), typer.models.OptionInfo)
        )
    )
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    command.__doc__ = function.__doc__


def _typer_info(parameter: inspect.Parameter) -> Any:
    return get_args(parameter.annotation)[1]


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
    terminal.note(
        f"{path}: {found['images']:,} images, {found['classes']:,} classes, "
        f"{found['positives']:,} positives, {found['negatives']:,} negatives, "
        f"{found['unknown']:,} unknown ({1 - found['known_share']:.2%})"
    )
    for text in found["notes"]:
        terminal.note(f"note: {text}")
    for text in found["warnings"]:
        terminal.warning(text)


def _report_images(store: LabelStore) -> None:
    """Say how many of the images are where they are said to be."""
    there, looked_for, missing = images_found(store)
    sampled = " (a sample)" if looked_for < len(store) else ""
    text = f"{there:,} of {looked_for:,} images{sampled} found in {store.origin.image_root}"
    if not looked_for:
        terminal.note("note: the store has no image paths; --path-template can make them from ids")
    elif there == looked_for:
        terminal.note(text)
    else:
        terminal.warning(
            f"{text}; there is no {missing}, for one: see --images and --path-template"
        )


def _add_simulation(name: str, scheme: Callable[..., LabelStore]) -> None:
    """Make a command from a scheme: its own options, and those all have."""

    def command(
        store: Annotated[Path, typer.Argument(help="a store with complete labels, or many")],
        *,
        seed: SeedOption = 0,
        split: Annotated[str | None, typer.Option("--split", help="take only this split")] = None,
        out: OutOption = None,
        overwrite: OverwriteOption = False,
        **own: Any,
    ) -> None:
        values = "".join(f"-{value}" for value in own.values())
        stem = store.resolve().name.removesuffix(".labels")
        target = out or Path(f"{stem}-{name}{values}-seed{seed}.labels")
        refuse_existing(target, overwrite=overwrite)
        full = LabelStore.open(store)
        made = scheme(full if split is None else full.split(split), seed=seed, **own)
        if split is not None:
            made.origin.made_by["split"] = split
        made.save(target, overwrite=overwrite)
        _report(target, made)

    _with_options_of(command, scheme, own=slice(1, None), leave_out={"seed"})
    simulate_app.command(name, hidden=name == "rps")(command)


for _name, _scheme in simulate.SCHEMES.items():
    _add_simulation(_name, _scheme)
