-- What a script finds at an embedded Redis. Called once, with the functions that execute a command and that hash a text;
-- gives the one that runs a script.

local execute, sha1hex = ...

-- No script runs another text, or reads a file.
dofile, loadfile, load, loadstring, print, collectgarbage, newproxy = nil

-- An error of a command is caught as its text.
local caught = pcall
local function plain(fine, raised, ...)
  if not fine and type(raised) == 'table' and type(raised.err) == 'string' then raised = raised.err end
  return fine, raised, ...
end
pcall = function(...) return plain(caught(...)) end

redis = {
  REDIS_VERSION_NUM = 0x00070000,
  pcall = execute,
  sha1hex = sha1hex,
  call = function(...)
    local reply = execute(...)
    if type(reply) == 'table' and reply.err then error(reply, 0) end
    return reply
  end,
  status_reply = function(text) return { ok = text } end,
  error_reply = function(text)
    text = string.gsub(text, '^-', '')
    return { err = string.find(text, ' ') and text or 'ERR ' .. text }
  end,
}

-- A variable that is not local is a mistake, whether it is read or written.
setmetatable(_G, {
  __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. tostring(name), 2) end,
  __newindex = function(_, name) error('Attempt to modify a readonly table: ' .. tostring(name), 2) end,
})

-- What a script raises is its reply.
return function(script)
  local fine, reply = pcall(script)
  if fine then return reply end
  return { err = tostring(reply) }
end
