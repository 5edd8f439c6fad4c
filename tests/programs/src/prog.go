// Command prog writes a file from four goroutines at once and reads it back in other pieces.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"sync"
)

const (
	block  = 48 << 10
	blocks = 64
)

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func main() {
	file, err := os.Create(os.Args[1])
	must(err)
	var group sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for index := worker; index < blocks; index += 4 {
				data := make([]byte, block)
				for i := range data {
					data[i] = byte(index*7 + i%253)
				}
				_, err := file.WriteAt(data, int64(index)*block)
				must(err)
			}
		}(worker)
	}
	group.Wait()
	must(file.Sync())
	_, err = file.Seek(0, io.SeekStart)
	must(err)
	sum := sha256.New()
	count, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{file}, make([]byte, 10007))
	must(err)
	fmt.Printf("%d %x\n", count, sum.Sum(nil))
	must(file.Close())
	must(os.MkdirAll("a/b/c", 0o755))
	must(os.Rename(os.Args[1], "a/b/c/data"))
	_, err = os.Stat(os.Args[1])
	fmt.Println(os.IsNotExist(err))
	entries, err := os.ReadDir("a/b/c")
	must(err)
	fmt.Println(len(entries), entries[0].Name())
	must(os.WriteFile("small", []byte("small"), 0o600))
	must(os.Truncate("small", 3))
	data, err := os.ReadFile("small")
	must(err)
	fmt.Println(string(data))
	copied, err := os.Create("copied")
	must(err)
	source, err := os.Open("a/b/c/data")
	must(err)
	count, err = io.Copy(copied, source) // copy_file_range
	must(err)
	must(copied.Close())
	fmt.Println(count)
}
