//! Step 5: compare and delete in Lua. The reply to an acquire is lost.

use super::own_value::acquire;
use super::{Result, client, connect};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, command};
use redis::{Connection, RedisResult, Script, cmd};

const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0";

fn release(redis: &mut Connection, me: &str) -> RedisResult<bool> {
    Script::new(RELEASE).key("lock").arg(me).invoke(redis)
}

pub(crate) async fn run() -> Result<()> {
    println!("step 5: compare and delete in Lua");
    let server = RedisServer::start()?;
    let proxy = Proxy::to_server(&server)?;
    let mut b = connect(&server.url())?;
    acquire(&mut b, "B")?;
    println!("  by hand: a late release of A ended the hold of B: {}", release(&mut b, "A")?);
    release(&mut b, "B")?;

    // The server executes the command, and the connection breaks before the reply arrives.
    proxy.drop_replies(1, AfterDrop::Disconnect, command("SET"));
    let failed = acquire(&mut connect(&proxy.url())?, "A, first try").is_err();
    let a_holds = acquire(&mut connect(&proxy.url())?, "A, second try")?;
    let holder: String = cmd("GET").arg("lock").query(&mut b)?;
    println!(
        "  by hand: an error: {failed}; the second try acquires it: {a_holds}. The holder is \"{holder}\""
    );

    let server = RedisServer::start()?;
    let proxy = Proxy::to_server(&server)?;
    let (a, b) = (client(&proxy.url(), "A").await?, client(&server.url(), "B").await?);
    // The first call of a script loads it into the server.
    b.mutex("lock")?.acquire().await?.release().await?;
    proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
    let guard = a.mutex("lock")?.acquire().await?;
    let refused = b.mutex("lock")?.try_acquire().await?.granted().is_none();
    guard.release().await?;
    let free = b.mutex("lock")?.try_acquire().await?.granted().is_some();
    println!("  Leasehold: A acquires it by a resend, B is refused: {refused}. One release frees it: {free}");
    Ok(())
}
