# git: init, add, commit, branch, merge, gc, clone, fetch, worktree, stash, fsck.
command -v git >/dev/null || { echo "git is not installed"; exit 77; }
git init -q --template= -b main origin
cd origin
git config pack.threads 1; git config gc.auto 0
cp -r "$FIXTURE/many" "$FIXTURE/deep" "$FIXTURE/size-1048576" "$FIXTURE/soft" .
git add -A && git commit -q -m first
git checkout -q -b side
for i in 1 2 3 4 5; do echo "change $i" >> many/00$i.txt; git commit -q -a -m "change $i"; done
git checkout -q main
git mv many/100.txt renamed; git rm -q many/101.txt; git commit -q -m "moved"
git merge -q -m merged side
git log --format='%H %s' | cat
git status --short
git tag -a v1 -m "a tag"
git gc -q --prune=now
git fsck --full --strict 2>&1
cd ..
git clone -q --template= origin clone
git clone -q --template= --bare --no-local origin bare.git
cd clone
git log --oneline | wc -l
echo more > new; git add new; git commit -q -m "from the clone"
git push -q origin main:pushed
git worktree add -q --detach ../tree main~1
echo stashed >> renamed; git stash -q; git stash pop -q; git diff --stat | cat
git fsck --full 2>&1
cd ../origin && git fetch -q ../clone main && git merge -q --ff-only FETCH_HEAD && git rev-parse HEAD
git grep -n 'change 3' | cat
cd .. && diff -r --exclude=.git origin clone || true
find . \( -name index -o -name ORIG_HEAD -o -name '*.rev' -o -name FETCH_HEAD \) -path '*.git*' -delete
# These hold the absolute path of the folder.
rm -rf clone/.git/config bare.git/config tree/.git clone/.git/worktrees bare.git/packed-refs
rm -rf clone/.git/logs origin/.git/logs
