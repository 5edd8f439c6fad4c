# git: this repository is cloned by its protocol, changed on two branches, merged, repacked and checked.
. "$REPO/tests/applications/start"
has git git
git -C "$REPO" rev-parse HEAD > /dev/null 2>&1 || skip "the sources are no git repository"
git clone --quiet --no-local "file://$(realpath "$REPO")" clone
cd clone
for branch in one two; do
  git checkout --quiet -B $branch "$(git rev-list --max-parents=0 HEAD | tail -n 1)"
  for number in $(seq 30); do
    echo "$branch $number" >> $branch.txt
    git add $branch.txt
    git commit --quiet -m "$branch $number"
  done
done
git merge --quiet -m merged one
git worktree add --quiet ../tree one
git -C ../tree status --short
git gc --quiet --prune=now
git repack --quiet -a -d -f --depth=20
git fsck --full --strict 2>&1 | grep -v '^dangling' || true
git status --short
git rev-parse HEAD one two
git ls-files | wc -l
git count-objects -v | grep -e garbage -e '^count'
cd ..
# The index has inode numbers and times.
rm -rf clone/.git tree
