# A virtual environment of Python with pip, which installs a package and takes it away again.
. "$REPO/tests/applications/start"
/usr/bin/python3 -c 'import ensurepip' 2> /dev/null || skip "ensurepip is missing: install python3-venv"
wheel=$(ls /usr/share/python-wheels/setuptools-*.whl 2> /dev/null | tail -n 1)
[ -n "$wheel" ] || skip "no wheel in /usr/share/python-wheels: install python3-venv"
/usr/bin/python3 -m venv env
env/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'
env/bin/pip --disable-pip-version-check install --quiet --no-index --no-deps --force-reinstall "$wheel"
env/bin/pip --disable-pip-version-check check
env/bin/pip --disable-pip-version-check list --format freeze
env/bin/python -c 'import setuptools; print(setuptools.__file__)'
files() { (cd env && find . -name '*.pyc' -prune -o -type f -not -path '*.dist-info/*' -path '*/site-packages/*' -print0 | LC_ALL=C sort -z | xargs -0 cksum | cksum); }
files
env/bin/pip --disable-pip-version-check uninstall --quiet --yes setuptools
files
find env -name '*.pyc' | wc -l
# Scripts and compiled files name the folder and its times.
rm -r env
