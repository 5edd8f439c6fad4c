# find, mv and rm: searches by name, type, size, age and links; renames over files and folders; removal.
cp -a "$FIXTURE/" t; chmod 755 t
find t | sort | head -n 200
find t -type f -size +1000k | sort
find t -type l | sort
find t -links 2 -type f | sort
find t -perm 0600
find t -newermt 2002-01-01 -type f | sort
find t -xdev -name '*7.txt' -print0 | sort -z | xargs -0 cat
find t -path '*many*' -name '1*' -delete
find t/many -type f | wc -l
find t -empty | sort
find t -samefile t/deep/hard | sort
find -L t -maxdepth 2 -xtype l 2>&1 | sort
mv t/size-511 t/renamed; mv t/renamed t/deep/
mv t/size-0 t/size-1
cat t/size-1
mv t/deep t/moved
mkdir dest full; touch full/file
mv t/moved dest/; mv t/many t/soft t/empty dest
mv -T t/to-folder dest/to-folder
mv -T full dest/many 2>&1 || echo "a filled folder is not replaced"
mkdir hollow; mv -T full hollow; ls hollow
mv -n dest/many/001.txt dest/many/002.txt; cat dest/many/001.txt
mv dest dest/many 2>&1 || echo "not into itself"
mv "t/name with space" "t/-starts-with-a-dash" hollow
rm -rf t
rm dest 2>&1 || echo "rm refuses a folder"
rmdir dest 2>&1 || echo "rmdir refuses a filled folder"
rm -r dest/many && ls dest
cp -a "$FIXTURE/" again && rm -rf again
rm nothing 2>&1 || echo "rm of nothing fails"
rm -f nothing
