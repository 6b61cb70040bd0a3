require("bench/load/common")
function init(args)
  setup_from(args)
  request = create_with("Idempotency-Key")
end
