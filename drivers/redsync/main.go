// The driver of redsync, over go-redis: `driver interop URL` or `driver bench URL`. The protocols are in ../README.md.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What answers the requests of a role.
type role interface {
	answer(request string, arguments []string) (string, error)
}

func main() {
	options, err := redis.ParseURL(os.Args[2])
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(options)
	var driver role
	switch os.Args[1] {
	case "interop":
		driver = newInterop(client)
	case "bench":
		driver = newBench(client)
	default:
		panic("there is no role " + os.Args[1] + ": there are interop, bench")
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[0] == "stop" {
			return
		}
		answer, err := driver.answer(words[0], words[1:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
}

// The version of redsync that is linked.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/go-redsync/redsync/v4" {
				return strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	return "unknown"
}

// An argument that is a number.
func number(arguments []string, at int) int {
	n, err := strconv.Atoi(arguments[at])
	if err != nil {
		panic(err)
	}
	return n
}
