# Keeps a PostgreSQL for as long as standard input is open, and then leaves nothing behind.
#
#   sh keep.sh DIRECTORY BIN
#
# DIRECTORY is to be removed, and has this file; BIN has PostgreSQL's programs. `petstore demo` holds the other end of
# standard input and never writes to it. However that program ends, even killed at once, the system closes its end:
# that is how this hears of it.
cd "$1" || exit
exec 3<&0 </dev/null

# Nothing waits for the disk: what is stored here need not outlive the machine, nor even the program.
if "$2/initdb" --pgdata="$1/data" --username=petstore --auth=trust --encoding=UTF8 --locale=C --no-sync \
  --wal-segsize=1; then
  # Heard on a socket in a directory that only this user may enter. What a killed server would leave in /dev/shm is in
  # that directory as well.
  "$2/postgres" -D "$1/data" -p 5432 -k "\"$1\"" -c listen_addresses= -c fsync=off -c full_page_writes=off \
    -c synchronous_commit=off -c shared_buffers=32MB -c dynamic_shared_memory_type=mmap 3<&- &
  server=$!
  {
    read -r _ <&3
    : >stopping
    # Again and again: a server that has only just begun does not hear it yet.
    while kill -QUIT "$server" 2>/dev/null; do sleep 0.1; done
  } &
  watch=$!
  wait "$server"
  [ -e stopping ] || kill "$watch"
  wait "$watch" 2>/dev/null # the shell would remark on it
fi
cd / && rm -rf "$1"
