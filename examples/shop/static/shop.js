// The only script of the shop. Every page works without it.
const timer = document.querySelector("[data-seconds-left]");
if (timer) {
  const end = performance.now() + timer.dataset.secondsLeft * 1000;
  const tick = () => {
    const left = Math.max(0, Math.round((end - performance.now()) / 1000));
    timer.textContent = `${Math.floor(left / 60)} min ${left % 60} s`;
    if (left > 0) setTimeout(tick, 1000);
    else setTimeout(() => location.reload(), 8000); // by then, the service has ended the order
  };
  tick();
}
const waiting = document.querySelector("[data-reload]");
if (waiting) setTimeout(() => location.reload(), waiting.dataset.reload * 1000);
