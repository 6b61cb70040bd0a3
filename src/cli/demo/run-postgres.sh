# Runs a temporary PostgreSQL until standard input is closed, then removes it.
#
#   sh run-postgres.sh DIRECTORY BIN
#
# DIRECTORY contains this file and is removed at the end. BIN contains PostgreSQL's programs. `petstore demo` holds the
# other end of standard input and never writes to it. However that program ends, even by SIGKILL, the system closes its
# end, and this script reads the end of the file.
cd "$1" || exit
exec 3<&0 </dev/null

# Nothing is flushed to disk: the data is temporary.
if "$2/initdb" --pgdata="$1/data" --username=petstore --auth=trust --encoding=UTF8 --locale=C --no-sync \
  --wal-segsize=1; then
  # Listens only on a socket in a directory that only this user can enter. Shared memory is in that directory too, so that
  # a killed server leaves nothing in /dev/shm.
  "$2/postgres" -D "$1/data" -p 5432 -k "\"$1\"" -c listen_addresses= -c fsync=off -c full_page_writes=off \
    -c synchronous_commit=off -c shared_buffers=32MB -c dynamic_shared_memory_type=mmap 3<&- &
  server=$!
  {
    read -r _ <&3
    : >stopping
    # Repeated, because a server that has just started may not handle the signal yet.
    while kill -QUIT "$server" 2>/dev/null; do sleep 0.1; done
  } &
  watch=$!
  wait "$server"
  [ -e stopping ] || kill "$watch"
  wait "$watch" 2>/dev/null # otherwise the shell reports it
fi
cd / && rm -rf "$1"
