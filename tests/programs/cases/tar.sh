# tar: create, list, extract, append, update, compressed and through a pipe, with sparse files and links.
tar -C "$FIXTURE/" --sort=name -cf all.tar .
tar -tvf all.tar | sort
mkdir out piped sparse
tar -xpf all.tar -C out
diff -r --no-dereference "$FIXTURE/" out && echo "extracted tree is alike"
tar -C out --sort=name -cf - . | tar -xpf - -C piped
diff -r --no-dereference out piped && echo "piped tree is alike"
tar -C out -S -cf sparse.tar holes && tar -xSf sparse.tar -C sparse && cmp out/holes sparse/holes
gzip -n -c all.tar > all.tar.gz
tar -xzf all.tar.gz -O ./many/007.txt
tar -C out -rf all.tar ./script && tar -tf all.tar | tail -n 1
tar -df all.tar -C out 2>&1 | sort
tar -xf all.tar.gz -C piped --strip-components=2 ./many
tar --delete -f all.tar ./script ./many && tar -tf all.tar | wc -l
tar -xf nothing.tar 2>&1 | head -n 1 || echo "a missing archive is refused"
touch -d 2019-01-01 out piped sparse
rm sparse.tar
