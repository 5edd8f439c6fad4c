# Hard links and symbolic links: counts, shared data, chains, loops, dangling and long targets.
echo one > a; ln a b; ln b c; stat -c '%n %h %s' a b c
echo two >> b; cat c; rm a; stat -c '%n %h' b c
ln b b 2>&1 || echo "the name exists"
ln -f b d; ln . e 2>&1 || echo "folders are not linked"
mkdir sub; ln c sub/c; mv sub/c sub/c2; stat -c '%n %h' sub/c2
test b -ef sub/c2 && echo "same file"
mv b d 2>&1 || echo "they are one file"; stat -c '%n %h' b d
ln -s b s; ln -s s t; ln -s t u; cat u; readlink u; readlink -f u | xargs basename
ln -s loop2 loop1; ln -s loop1 loop2; cat loop1 2>&1 || echo "loop is refused"
ln -s nothing dangling; echo made > dangling; cat nothing
ln -s sub dir; ls dir; rm dir; ls sub
ln -s "$(head -c 4000 /dev/zero | tr '\0' x)" long; readlink long | wc -c
ln -s /etc/hostname absolute; ln -s ../.. up
ln -sfn sub s; readlink s
chmod 600 c; stat -c '%n %a' c sub/c2
ln -P t tt; readlink tt; ln -L c real; stat -c '%n %F %h' tt real
stat -c '%n %F %s' s t u long
touch -h -d 2010-10-10 s; stat -c '%n %Y' s
chown -h 0:0 t 2>/dev/null || true
ln -s '' empty 2>&1 || echo "an empty target is refused"
