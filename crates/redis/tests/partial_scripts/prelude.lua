-- Runs a script up to a number of commands on a real server, and reports what it did. Redis does not roll back the commands
-- before the cut.
--
-- KEYS     the keys of the script, then the keys to dump afterwards
-- ARGV[1]  how many commands the script may execute, or -1
-- ARGV[2]  how many of KEYS are the script's
-- ARGV[3…] the arguments of the script
--
-- Replies
--   {'whole', 'cut' or 'failed', line of the first command that was not executed or -1, {command…}, {channel, text…},
--    {{type, content, ttl_ms}…}, reply of the script}
--
-- A command that creates a key, after a PEXPIRE of that key, is not cut off from a PEXPIRE that follows at once; nor from a DEL of
-- the key right before: create_hash.lua says why, and tests/store/creation.rs shows it on servers. They count as one command.
--
-- Stricter than a server: a key that was not declared and an argument that is no text end the script with an error.

local server, all_keys, all_arguments = redis, KEYS, ARGV
local limit, key_count = tonumber(all_arguments[1]), tonumber(all_arguments[2])
local KEYS, ARGV = { unpack(all_keys, 1, key_count) }, { unpack(all_arguments, 3) }
local declared, executed, messages, cut_at, misuse = {}, {}, {}, nil, nil
for _, key in ipairs(KEYS) do declared[key] = true end

local WITHOUT_KEYS = { TIME = true, PUBLISH = true, SPUBLISH = true }
local MANY_KEYS = { DEL = true, MGET = true }

local function check(name, arguments)
  for i, argument in ipairs(arguments) do
    if type(argument) ~= 'string' then misuse = name .. ': an argument is a ' .. type(argument) end
    local is_key = not WITHOUT_KEYS[name] and (i == 1 or MANY_KEYS[name])
    if is_key and not declared[argument] then misuse = name .. ': `' .. tostring(argument) .. '` was not declared' end
  end
end

local CREATES = { HSET = true, ZADD = true }
-- The keys for which PEXPIRE is permitted, and the one that the last command has created or deleted after that.
local proved, created, deleted = {}, nil, nil
local uncounted = 0

local function limited(command)
  return function(name, ...)
    local key = ...
    local completes = created and name == 'PEXPIRE' and key == created or deleted and CREATES[name] and key == deleted
    if completes then uncounted = uncounted + 1 end
    if cut_at or not completes and #executed - uncounted == limit then
      if not cut_at then
        -- 1 is pcall, 2 this function, 3 the script.
        local _, position = pcall(error, '', 3)
        cut_at = tonumber(string.match(position, ':(%d+):')) or 0
      end
      error('cut off')
    end
    check(name, { ... })
    executed[#executed + 1] = name
    if name == 'PUBLISH' or name == 'SPUBLISH' then
      local channel, text = ...
      messages[#messages + 1], messages[#messages + 2] = channel, text
    end
    local creates = CREATES[name] and proved[key] and server.call('EXISTS', key) == 0
    local result = command(name, ...)
    if name == 'PEXPIRE' and type(result) == 'number' then proved[key] = true end
    created, deleted = creates and key or nil, name == 'DEL' and proved[key] and key or nil
    return result
  end
end

local redis = {
  call = limited(server.call), pcall = limited(server.pcall), sha1hex = server.sha1hex,
  REDIS_VERSION_NUM = server.REDIS_VERSION_NUM,
}
local function script()
__SCRIPT__
end
local fine, reply = pcall(script)

local dump = {}
for i = key_count + 1, #all_keys do
  local key = all_keys[i]
  local kind = server.call('TYPE', key).ok
  local content = kind == 'string' and server.call('GET', key) or kind == 'hash' and server.call('HGETALL', key)
    or kind == 'list' and server.call('LRANGE', key, 0, -1)
    or kind == 'zset' and server.call('ZRANGE', key, 0, -1, 'WITHSCORES') or ''
  dump[#dump + 1] = { kind, content, server.call('PTTL', key) }
end
local how = cut_at and 'cut' or fine and not misuse and 'whole' or 'failed'
if misuse then reply = misuse end
if how == 'failed' and type(reply) == 'table' then reply = reply.err end
if how == 'cut' then reply = '' end
return { how, cut_at or -1, executed, messages, dump, reply }
