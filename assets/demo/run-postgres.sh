# Runs a PostgreSQL server for as long as standard input is open, then removes it.
#
#   sh run-postgres.sh DIRECTORY BIN
#
# DIRECTORY contains this file and is removed at the end. BIN has PostgreSQL's programs. `petstore demo` holds the other
# end of standard input and never writes to it. However that program ends, even by SIGKILL, the system closes its end,
# and the read below returns.
cd "$1" || exit
exec 3<&0 </dev/null

# Nothing is synced to disk: the data need not survive a crash of the machine or of the program.
if "$2/initdb" --pgdata="$1/data" --username=petstore --auth=trust --encoding=UTF8 --locale=C --no-sync \
  --wal-segsize=1; then
  # It listens on a socket in a directory that only this user may enter. Shared memory is in that directory too:
  # in /dev/shm, a killed server would leave it behind.
  "$2/postgres" -D "$1/data" -p 5432 -k "\"$1\"" -c listen_addresses= -c fsync=off -c full_page_writes=off \
    -c synchronous_commit=off -c shared_buffers=32MB -c dynamic_shared_memory_type=mmap 3<&- &
  server=$!
  {
    read -r _ <&3
    : >stopping
    # Repeated: a server that has only just started does not handle the signal yet.
    while kill -QUIT "$server" 2>/dev/null; do sleep 0.1; done
  } &
  watch=$!
  wait "$server"
  [ -e stopping ] || kill "$watch"
  wait "$watch" 2>/dev/null # hides the shell's message about the killed job
fi
cd / && rm -rf "$1"
