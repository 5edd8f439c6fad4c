# dd: odd sizes, offsets, seeks, truncation, appends, and O_DIRECT.
for size in 1 7 511 513 4095 4097 65537 999983; do
  dd if="$BYTES" of=odd-$size bs=$size count=3 iflag=fullblock status=none
done
dd if="$BYTES" of=seek bs=4097 seek=13 count=5 status=none
dd if="$BYTES" of=seek bs=1031 seek=3 skip=7 count=101 conv=notrunc status=none
dd if=seek of=skip bs=777 skip=11 status=none
dd if="$BYTES" of=short bs=1M count=2 status=none
dd if="$BYTES" of=short bs=100001 count=1 status=none
dd if=/dev/zero of=append bs=3 count=1 status=none
dd if="$BYTES" of=append bs=1000 count=9 oflag=append conv=notrunc status=none
dd if="$BYTES" of=bytes iflag=skip_bytes,count_bytes skip=1048573 count=2097155 bs=64K status=none
dd if="$BYTES" of=synced bs=300007 count=4 oflag=sync status=none
dd if="$BYTES" of=fsynced bs=300007 count=4 conv=fsync status=none
dd if=odd-999983 of=swapped conv=swab,ucase bs=4K status=none
dd if=/dev/null of=empty bs=1 status=none
dd if="$BYTES" of=new bs=10 count=1 conv=excl status=none
dd if="$BYTES" of=new bs=10 count=1 conv=excl 2>&1 | grep -c 'File exists' || true
dd if="$BYTES" of=direct bs=1M count=8 oflag=direct status=none
cmp direct "$BYTES" && echo "O_DIRECT write is alike"
dd if=direct of=read-direct bs=64K iflag=direct status=none
cmp direct read-direct && echo "O_DIRECT read is alike"
dd if=direct of=both bs=128K skip=3 seek=5 count=17 iflag=direct oflag=direct status=none
dd if="$BYTES" of=both bs=4096 seek=1 count=100 oflag=direct conv=notrunc status=none
dd if=direct bs=1M status=none iflag=direct | sha256sum
cp direct large; truncate -s 5000001 large
dd if=large bs=1M iflag=direct status=none | sha256sum
