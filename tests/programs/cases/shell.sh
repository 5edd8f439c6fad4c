# Shell redirections: every operator, here-documents, noclobber, process substitution, exec of a script.
echo one > f; echo two >> f; cat < f; cat <<< "here" > h; : > z
cat >> f <<END
three
END
ls nothing 2> err || true; wc -l < err
{ echo out; echo bad >&2; } > both 2>&1; cat both
{ echo out; echo bad >&2; } &> both2; { echo more; } &>> both2; cat both2
set -C; { echo no > f; } 2>/dev/null || echo "noclobber holds"; echo yes >| f; cat f; set +C
exec 7<>rw; echo 0123456789 >&7; exec 7>&-; exec 7<>rw; read -r -n 4 x <&7; echo AB >&7; exec 7>&-; cat rw
paste <(sort f) <(cat h) > pasted; cat pasted
tee t1 t2 < both | sort -r > t3; cat t1 t2 t3
for i in 3 1 2; do echo "$i"; done | sort > sorted; sort -o sorted -r sorted; cat sorted
printf '#!/bin/sh\necho "script $0 $#"\n' > run.sh; chmod +x run.sh; ./run.sh a b; (exec ./run.sh c)
cp /bin/true binary && ./binary && echo "binary ran"
{ echo x > binary; } 2>/dev/null || true
chmod -x run.sh; ./run.sh 2>/dev/null || echo "not executable: $?"
mkfifo pipe; (echo through > pipe) & cat pipe; wait; rm pipe
head -c 300000 <(yes) > y; wc -c < y; sed -i 's/y/n/' y; tr -d '\n' < y | sha256sum; split -b 65537 y part.; cat part.* | cmp - y
umask 077; echo s > private; mkdir private.d; stat -c '%n %a' private private.d
sort -S 64k -T . -R --random-source="$BYTES" y | sha256sum
cat f f f > fff; cat fff; head -c 100 /dev/zero | tee zeros | wc -c
awk 'BEGIN { for (i = 0; i < 5000; i++) print i, i * i > "squares"; close("squares"); while ((getline l < "squares") > 0) n++; print n }'
cat f > f 2>/dev/null; wc -c < f; touch -t 200102030405 dated; stat -c '%Y' dated; rm binary
