# Exercises sqlite3 with the journal mode given as the first argument.
command -v sqlite3 >/dev/null || { echo "sqlite3 is not installed"; exit 77; }
mode=$1
sql() { sqlite3 -batch -bail -cmd ".timeout 60000" "$@"; }
sql base.db "pragma journal_mode=$mode;"
sql base.db <<'SQL'
create table item(id integer primary key, name text, data blob);
create index by_name on item(name);
create table writer(who integer, turn integer, primary key (who, turn));
with recursive n(i) as (select 1 union all select i + 1 from n where i < 3000)
  insert into item select i, printf('item %05d', i), zeroblob(i % 300) from n;
begin; delete from item where id % 3 = 0; rollback;
begin; update item set name = 'changed ' || id where id % 5 = 0; commit;
delete from item where id % 7 = 0;
select count(*), sum(length(data)), min(name), max(name) from item;
SQL
writers=()
for who in 1 2 3 4; do
  ( for turn in $(seq 12); do echo "insert into writer values($who, $turn);"; done | sql base.db ) &
  writers+=($!)
done
for reader in 1 2 3; do
  sql base.db "select count(*) from item;"
done
for pid in "${writers[@]}"; do wait "$pid" || echo "a writer failed: $?"; done
sql base.db "select who, count(*), sum(turn) from writer group by who; pragma integrity_check;"
sql base.db "vacuum; pragma integrity_check;"
sql base.db ".dump" | sort | sha256sum
sql base.db ".backup copy.db"
sql copy.db "select count(*) from item; pragma integrity_check; pragma quick_check;"
ls | sort
rm -f base.db* copy.db*
