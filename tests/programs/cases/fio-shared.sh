# fio: four processes write, each in its own quarter of one shared file, with fsync now and then.
exec bash -euo pipefail "$SRC/fio.sh" --thread=0 --filename=shared --offset_increment=2m --fsync=40 --bs=8k
