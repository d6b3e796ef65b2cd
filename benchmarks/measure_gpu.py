"""Measures the GPU at hand with torch and writes a catalog file with its efficiencies, which pdplan accepts.

    python benchmarks/measure_gpu.py -o my_gpu.yaml               measure, fit, write; a few minutes
    python benchmarks/measure_gpu.py --gpu H100 -o my_gpu.yaml    where torch's name of the GPU is not known
    python benchmarks/measure_gpu.py --dry-run                    say what would be measured
    python benchmarks/measure_gpu.py --save timings.json -o ...   keep the raw timings
    python benchmarks/measure_gpu.py --load timings.json -o ...   fit kept timings, without a GPU
    python benchmarks/measure_gpu.py --load benchmarks/measured/h200.json --compare    the catalog against them

It needs torch, which pdplan does not. Fitted are the curves of docs/theory/calibration.md, to the same count of work:
GEMM in bf16 and, where the GPU has it, fp8; prefill and decode attention in bf16. What the timings do not show (a roof
that no kernel reached, the FP8 conversion that engines run apart, latent attention, experts, collectives) stays as the
catalog has it. Attention is torch's own; engines bring kernels that are often faster, so --classes gemm writes only
matrices. A GPU that the catalog lacks needs an entry first (accelerators: NAME: {like: ...}) and --catalog.

Kernels are timed in bursts. Products that run for seconds reach the power limit, so their rate is measured apart.
benchmarks/measured/ holds what it measured on an H100 and an H200; `--compare` prints the catalog's error on them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from gpu_kernels import Timing, copy_bandwidth, launch_time, measure, plan, sustained_rate  # noqa: E402
from kernel_tables import Hardware, decode_samples, gemm_samples, prefill_samples  # noqa: E402
from suspect import beats_physics  # noqa: E402

from benchmarks.efficiency_curve import CONSTANT, EfficiencyCurve, Fit, fit, predict  # noqa: E402
from costmodel.accelerator import Accelerator  # noqa: E402
from costmodel.errors import InputError, PdplanError, UnknownNameError  # noqa: E402
from costmodel.units import MICRO, MILLI  # noqa: E402
from search_spaces.catalog import AcceleratorCatalog, load_catalog, overlay_text  # noqa: E402
from search_spaces.quantities import rounded  # noqa: E402

SAMPLES = {"gemm": gemm_samples, "attention_prefill": prefill_samples, "attention_decode": decode_samples}
FREE = {
    "gemm": (*CONSTANT, "compute_half", "depth_half"),
    "attention_prefill": (*CONSTANT, "compute_half", "depth_half", "fill_half"),
    "attention_decode": CONSTANT,
}
"""Fitted parameters by class; the same as those of the catalog's own fits."""
SIZE = {"gemm": "m", "attention_prefill": "isl", "attention_decode": "batch_size"}
"""Column of the kernel tables by which errors are listed."""
LEAST_SEEN = 0.02
"""Share of kernels that a roof must decide for its efficiency to be written [1]."""
FEWEST = 8
"""Timings below which a curve is not fitted."""
MOST_BEYOND = 0.02
"""Share of timings faster than the data sheet allows from which it is not the GPU that --gpu names [1]."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Session:
    """Timings and where they come from: the GPU, driver and torch.

    Measured apart: copy [byte/s], launch [s], and the rate of products that run for seconds, by dtype [FLOP/s].
    """

    device: str
    versions: str
    date: str
    copy: float
    launch: float
    timings: tuple[Timing, ...]
    sustained: Mapping[str, float]

    @property
    def source(self) -> str:
        """As the catalog file names it."""
        return f"benchmarks/measure_gpu.py on {self.device}, {self.versions}, {self.date}"


def fit_timings(timings: Sequence[Timing], accelerator: Accelerator) -> dict[Key, Fit]:
    """A curve by (kernel class, dtype); InputError where kernels beat the data sheet of the accelerator."""
    hardware = Hardware(dict(accelerator.peak_flops), accelerator.bandwidth, accelerator.scale_up.bandwidth)
    fits: dict[Key, Fit] = {}
    for key in dict.fromkeys((one.kernel_class, one.dtype) for one in timings):
        kernel_class, dtype = key
        if kernel_class not in SAMPLES or (kernel_class == "gemm" and dtype not in accelerator.peak_flops):
            continue
        rows = [_row(one) for one in timings if (one.kernel_class, one.dtype) == key]
        samples = SAMPLES[kernel_class](rows, hardware, dtype)
        if samples.seconds.size < FEWEST:
            continue
        beyond = beats_physics(samples.seconds, samples.floor())
        if beyond.mean() > MOST_BEYOND:
            raise InputError(
                f"{int(beyond.sum())} of {beyond.size} {kernel_class} kernels in {dtype} are faster than the data "
                f"sheet of {accelerator.name} allows; name the GPU that was measured with --gpu"
            )
        fits[key] = fit(samples, FREE[kernel_class])
    if not fits:
        raise InputError("there are too few timings to fit a curve; run the measurement to its end")
    return fits


def efficiency_rows(fits: Mapping[Key, Fit], source: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Figures for the catalog file: what the timings show; a roof that they do not show stays as it was."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for (kernel_class, dtype), found in fits.items():
        curve = found.curve
        figures: dict[str, Any] = {}
        if found.compute_bound >= LEAST_SEEN:
            halves = [name for name in FREE[kernel_class] if name.endswith("_half")]
            figures |= {name: rounded(getattr(curve, name)) for name in ("compute", *halves)}
        if found.memory_bound >= LEAST_SEEN:
            figures["memory"] = rounded(curve.memory)
        figures |= {"launch_us": rounded(curve.launch / MICRO), "origin": "fitted", "source": source}
        table.setdefault(kernel_class, {})[dtype] = {**figures, "error": rounded(found.error)}
    return table


def overlay_of(session: Session, accelerator: Accelerator, fits: Mapping[Key, Fit]) -> str:
    """The text of the catalog file."""
    heading = [
        "catalog file: pdplan estimate --catalog FILE, or catalog: FILE in workload.yaml",
        session.source,
        f"copy: {session.copy / 1e12:.2f} TB/s, {session.copy / accelerator.bandwidth:.0%} of the data sheet; "
        f"launch inside a graph: {session.launch / MICRO:.1f} us",
        *(
            f"products that run for seconds: {rate / 1e12:.0f} TFLOP/s in {dtype}, "
            f"{rate / accelerator.peak_flops[dtype]:.0%} of the data sheet"
            for dtype, rate in session.sustained.items()
        ),
    ]
    return overlay_text(heading, accelerator.name, efficiency_rows(fits, session.source))


def table_of(fits: Mapping[Key, Fit], accelerator: Accelerator) -> str:
    """The fits beside the catalog's figures."""
    lines = [f"{'class':18} {'dtype':6} {'rows':>5} {'compute':>16} {'memory':>16} {'launch us':>16} {'error':>6}"]
    for (kernel_class, dtype), found in fits.items():
        known, curve = accelerator.efficiency[kernel_class, dtype], found.curve
        pairs = (
            (f"{curve.compute:.2f} ({known.compute:.2f})" if found.compute_bound >= LEAST_SEEN else "not seen"),
            (f"{curve.memory:.2f} ({known.memory:.2f})" if found.memory_bound >= LEAST_SEEN else "not seen"),
            f"{curve.launch / MICRO:.1f} ({known.launch / MICRO:.1f})",
        )
        cells = " ".join(f"{pair:>16}" for pair in pairs)
        lines.append(f"{kernel_class:18} {dtype:6} {found.rows:>5} {cells} {found.error:>6.0%}")
    return "\n".join([*lines, "in parentheses: the catalog's figures"])


def comparison(session: Session, accelerator: Accelerator) -> str:
    """The catalog's curves against the timings: median of predicted / measured - 1, by size."""
    hardware = Hardware(dict(accelerator.peak_flops), accelerator.bandwidth, accelerator.scale_up.bandwidth)
    lines = []
    for kernel_class, dtype in dict.fromkeys((timing.kernel_class, timing.dtype) for timing in session.timings):
        timings = [timing for timing in session.timings if (timing.kernel_class, timing.dtype) == (kernel_class, dtype)]
        efficiency = accelerator.efficiency[kernel_class, dtype]
        curve = EfficiencyCurve(
            **{field.name: getattr(efficiency, field.name, 0.0) for field in fields(EfficiencyCurve)}
        )
        samples = SAMPLES[kernel_class]([_row(timing) for timing in timings], hardware, dtype)
        errors = predict(curve, samples) / samples.seconds - 1.0
        sizes = np.array([timing.shape[SIZE[kernel_class]] for timing in timings])
        by_size = (f"{size}: {np.median(errors[sizes == size]):+.0%}" for size in np.unique(sizes))
        lines.append(
            f"{kernel_class} {dtype}: {np.median(errors):+.0%}, absolute {np.median(np.abs(errors)):.0%}; "
            f"by {SIZE[kernel_class]}: {', '.join(by_size)}"
        )
    return "\n".join(lines)


def read_session(path: Path) -> Session:
    """Timings that --save kept."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        timings = tuple(Timing(**one) for one in raw.pop("timings"))
        return Session(timings=timings, **raw)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} does not hold timings that --save wrote ({error})") from error


def save_session(session: Session, path: Path) -> None:
    """Keep the raw timings."""
    head = {name: value for name, value in asdict(session).items() if name != "timings"}
    rows = ",\n".join(json.dumps(asdict(timing)) for timing in session.timings)
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "timings": [\n{rows}\n]}}\n', encoding="utf-8")


def measured_session(torch: Any, dtypes: tuple[str, ...]) -> Session:
    """Measure the GPU at hand."""
    runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    timings = []
    total = len(plan(dtypes))
    for count, one in enumerate(measure(torch, dtypes), 1):
        timings.append(one)
        print(f"\r{count} of {total} kernels", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return Session(
        device=torch.cuda.get_device_name(),
        versions=f"torch {torch.__version__}, {runtime}, driver {_driver()}",
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        copy=copy_bandwidth(torch),
        launch=launch_time(torch),
        timings=tuple(timings),
        sustained={dtype: sustained_rate(torch, dtype) for dtype in dtypes},
    )


def usable_torch() -> Any:
    """Return torch with a GPU; InputError, one sentence, where there is none."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise InputError("torch is not installed here; install a build with GPU support to measure a GPU") from error
    if not torch.cuda.is_available():
        raise InputError(
            f"torch {torch.__version__} finds no GPU here; run this on the machine whose GPU is to be measured"
        )
    return torch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 done, 2 bad input or no GPU."""
    flags = _parser().parse_args(arguments)
    try:
        return _run(flags)
    except PdplanError as error:
        print(f"measure_gpu: error: {error}", file=sys.stderr)
        return 2


def _run(flags: argparse.Namespace) -> int:
    catalog = load_catalog(flags.catalog)
    dtypes = ("bf16", "fp8")
    if flags.dry_run:
        return _describe(catalog, flags, dtypes)
    if flags.load is not None:
        session = read_session(flags.load)
        accelerator = _accelerator(catalog, flags.gpu or session.device)
    else:
        torch = usable_torch()
        accelerator = _accelerator(catalog, flags.gpu or torch.cuda.get_device_name())
        session = measured_session(torch, tuple(dtype for dtype in dtypes if dtype in accelerator.peak_flops))
    if flags.save is not None:
        save_session(session, flags.save)
    wanted = {name.strip() for name in flags.classes.split(",")}
    unknown = wanted - set(SAMPLES)
    if unknown:
        raise InputError(f"--classes {min(unknown)!r} is not known; known: {', '.join(SAMPLES)}")
    fits = fit_timings([one for one in session.timings if one.kernel_class in wanted], accelerator)
    print(table_of(fits, accelerator))
    if flags.compare:
        print(comparison(session, accelerator))
    if flags.output is not None:
        flags.output.write_text(overlay_of(session, accelerator, fits), encoding="utf-8")
        print(f"wrote {flags.output}; try: pdplan gpus {accelerator.name} --catalog {flags.output}")
    return 0


def _describe(catalog: AcceleratorCatalog, flags: argparse.Namespace, dtypes: tuple[str, ...]) -> int:
    kernels = plan(dtypes)
    counts = {name: sum(one[0] == name for one in kernels) for name in SAMPLES}
    print(f"would measure {', '.join(f'{count} {name}' for name, count in counts.items())} kernels in a few minutes")
    torch = usable_torch()
    name = _accelerator(catalog, flags.gpu or torch.cuda.get_device_name()).name
    print(f"on {torch.cuda.get_device_name()}, in the catalog {name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpu", metavar="NAME", help="the GPU's name in the catalog; default: as torch names it")
    parser.add_argument("--catalog", type=Path, metavar="FILE", help="catalog file that defines the GPU")
    parser.add_argument("--classes", default=",".join(SAMPLES), help="kernel classes to fit and write (default: all)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the raw timings")
    parser.add_argument("--load", type=Path, metavar="FILE", help="fit kept timings instead of measuring")
    parser.add_argument("--compare", action="store_true", help="the catalog's error on the timings, by size")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the catalog file")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured, and whether it could be")
    return parser


def _accelerator(catalog: AcceleratorCatalog, name: str) -> Accelerator:
    try:
        return catalog.accelerator(name)
    except UnknownNameError as error:
        raise InputError(f"{error}; name it with --gpu, or define it in a catalog file (--catalog)") from error


def _row(one: Timing) -> dict[str, str]:
    return {**{key: str(value) for key, value in one.shape.items()}, "latency_ms": repr(one.seconds / MILLI)}


def _driver() -> str:
    """The driver's version, where the system's tool tells."""
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


__all__ = ["EfficiencyCurve", "Session", "Timing", "efficiency_rows", "fit_timings", "main", "overlay_of"]

if __name__ == "__main__":
    sys.exit(main())
