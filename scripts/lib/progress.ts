import { seconds } from "./run.ts";

/**
 * One line on standard error that tells what is going on: redrawn with the time on a terminal,
 * printed once elsewhere. Standard output stays free for results.
 */
export interface Progress {
  end(text: string): void;
}

export function startProgress(text: string): Progress {
  const started = performance.now();
  const terminal = process.stderr.isTTY === true;
  const draw = () => {
    process.stderr.write(`\r\x1b[2K${text} ... ${seconds(performance.now() - started)}`);
  };
  if (!terminal) process.stderr.write(`${text} ...\n`);
  const timer = terminal ? setInterval(draw, 100) : undefined;
  if (terminal) draw();
  return {
    end(last) {
      clearInterval(timer);
      process.stderr.write(`${terminal ? "\r\x1b[2K" : ""}${last}\n`);
    },
  };
}
