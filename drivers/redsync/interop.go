// redsync's Mutex beside Leasehold's.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// How long a section of `count` may wait for the lock.
const waitLimit = time.Minute

type interop struct {
	redis   *redis.Client
	redsync *redsync.Redsync
	lock    *redsync.Mutex
}

func newInterop(client *redis.Client) *interop {
	return &interop{redis: client, redsync: redsync.New(goredis.NewPool(client))}
}

func (d *interop) mutex(name string, lease time.Duration, more ...redsync.Option) *redsync.Mutex {
	options := []redsync.Option{
		redsync.WithExpiry(lease),
		// By default a request may take a twentieth of the lease: with short leases too little for a busy machine.
		redsync.WithTimeoutFactor(0.5),
	}
	return d.redsync.NewMutex(name, append(options, more...)...)
}

func (d *interop) try(name string, lease time.Duration) (string, error) {
	lock := d.mutex(name, lease)
	var taken *redsync.ErrTaken
	if err := lock.TryLock(); errors.As(err, &taken) {
		return "taken", nil
	} else if err != nil {
		return "", err
	}
	d.lock = lock
	return "got", nil
}

func (d *interop) acquire(name string, lease, wait time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock := d.mutex(name, lease, redsync.WithTries(math.MaxInt))
	// Only the context ends so many tries.
	if err := lock.LockContext(ctx); errors.Is(err, redsync.ErrFailed) {
		return "taken", nil
	} else if err != nil {
		return "", err
	}
	d.lock = lock
	return "got", nil
}

func (d *interop) extend(lease time.Duration) (string, error) {
	// A mutex extends to the expiry that it was created with, so this is another one with the same value.
	lock := d.mutex(d.lock.Name(), lease, redsync.WithValue(d.lock.Value()))
	return ended(lock.Extend())
}

func (d *interop) release() (string, error) {
	lock := d.lock
	d.lock = nil
	return ended(lock.Unlock())
}

// The answer for the result of an extend or a release.
func ended(ok bool, err error) (string, error) {
	var taken *redsync.ErrTaken
	switch {
	case ok:
		return "ok", nil
	case errors.As(err, &taken), errors.Is(err, redsync.ErrLockAlreadyExpired):
		return "lost", nil
	default:
		return "", err
	}
}

func (d *interop) count(name, key string, times int, lease time.Duration) (string, error) {
	ctx := context.Background()
	seen, longest := make([]string, 0, times), time.Duration(0)
	for range times {
		called := time.Now()
		if got, err := d.acquire(name, lease, waitLimit); err != nil {
			return "", err
		} else if got != "got" {
			return "", errors.New("timed out waiting for the lock")
		}
		longest = max(longest, time.Since(called))
		number, err := d.redis.Get(ctx, key).Int()
		if err != nil && err != redis.Nil {
			return "", err
		}
		time.Sleep(time.Millisecond)
		if err := d.redis.Set(ctx, key, number+1, 0).Err(); err != nil {
			return "", err
		}
		if released, err := d.release(); err != nil {
			return "", err
		} else if released == "lost" {
			return "", errors.New("lost the lock while counting")
		}
		seen = append(seen, strconv.Itoa(number))
		time.Sleep(time.Duration(rand.Int63n(int64(40 * time.Millisecond))))
	}
	return fmt.Sprintf("counted %d %s", longest.Milliseconds(), strings.Join(seen, " ")), nil
}

func (d *interop) answer(request string, arguments []string) (string, error) {
	ms := func(at int) time.Duration { return time.Duration(number(arguments, at)) * time.Millisecond }
	switch request {
	case "hello":
		return "hello redsync " + version(), nil
	case "try":
		return d.try(arguments[0], ms(1))
	case "acquire":
		return d.acquire(arguments[0], ms(1), ms(2))
	case "extend":
		return d.extend(ms(0))
	case "release":
		return d.release()
	case "count":
		return d.count(arguments[0], arguments[1], number(arguments, 2), ms(3))
	default:
		return "", fmt.Errorf("there is no request %q", request)
	}
}
