# fio: random writes with crc32c verification, four threads, O_DIRECT and odd block sizes.
exec bash -euo pipefail "$SRC/fio.sh" --thread=1 --blocksize_range=512-96k --blocksize_unaligned=1
