//! Step 6: re-entry with a count. The reply to an entry is lost, and the client sends it again.

use super::{Result, client, connect};
use leasehold::Released;
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, command};
use redis::{Connection, RedisResult, Script};

const ENTER: &str = "\
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local count = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('PEXPIRE', KEYS[1], 30000)
return count";

const LEAVE: &str = "\
local count = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if count == 0 then
  redis.call('DEL', KEYS[1])
end
return count";

fn call(script: &str, redis: &mut Connection, me: &str) -> RedisResult<i64> {
    Script::new(script).key("lock").arg(me).invoke(redis)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 6: re-entry with a count");
    let server = RedisServer::start()?;
    let proxy = Proxy::to_server(&server)?;
    let mut b = connect(&server.url())?;
    // The first call of a script loads it into the server.
    call(ENTER, &mut b, "B")?;
    call(LEAVE, &mut b, "B")?;
    proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
    let failed = call(ENTER, &mut connect(&proxy.url())?, "A").is_err();
    let mut a = connect(&proxy.url())?;
    let entered = call(ENTER, &mut a, "A")?;
    let left = call(LEAVE, &mut a, "A")?;
    let b_enters = call(ENTER, &mut b, "B")?;
    println!("  by hand: an error: {failed}. Sent again: count {entered}. After the release: count {left}");
    println!("  by hand: A is done, and B enters: {}", b_enters > 0);

    let server = RedisServer::start()?;
    let proxy = Proxy::to_server(&server)?;
    let (a, b) = (client(&proxy.url(), "A").await?, client(&server.url(), "B").await?);
    let (a, b) = (
        a.reentrant_mutex("lock")?.owned_by(&a.new_owner()),
        b.reentrant_mutex("lock")?.owned_by(&b.new_owner()),
    );
    b.acquire().await?.release().await?;
    proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
    let guard = a.acquire().await?;
    let entered = guard.count();
    let free = guard.release().await? == Released::NoLongerHeld;
    let b_enters = b.try_acquire().await?.granted().is_some();
    println!("  Leasehold: count {entered}. One release ends it: {free}. B enters: {b_enters}");
    Ok(())
}
