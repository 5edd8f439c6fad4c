# fio: random writes with crc32c verification, four processes, each with a file of its own.
exec bash -euo pipefail "$SRC/fio.sh" --thread=0 --bssplit=4k/50:12k/25:64k/25
