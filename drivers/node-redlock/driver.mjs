// The driver of node-redlock: `driver.mjs interop URL` or `driver.mjs bench URL`. The protocols are in ../README.md.

const [role, url] = process.argv.slice(2);
if (!["interop", "bench"].includes(role)) throw new Error(`there is no role ${role}: there are interop, bench`);
const { serve } = await import(`./${role}.mjs`);
await serve(url);
