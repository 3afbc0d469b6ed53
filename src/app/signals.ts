/** What a process says that ends because its standard input did. */
export const END_OF_INPUT = "end of input";

/** The name of the first signal that asks for the end; whoever asks twice does not want to wait. */
export function stopSignals(alsoInputEnd: boolean): {
  readonly first: Promise<string>;
  readonly second: AbortSignal;
} {
  const hurry = new AbortController();
  let asked: string | null = null;
  const first = new Promise<string>((resolve) => {
    const ask = (name: string) => {
      if (asked !== null && name !== END_OF_INPUT) hurry.abort();
      asked = name;
      resolve(name);
    };
    process.on("SIGTERM", () => ask("SIGTERM"));
    process.on("SIGINT", () => ask("SIGINT"));
    if (!alsoInputEnd) return;
    process.stdin.on("end", () => ask(END_OF_INPUT));
    process.stdin.on("close", () => ask(END_OF_INPUT));
    process.stdin.resume();
  });
  return { first, second: hurry.signal };
}

/**
 * SIGHUP from the start on: unhandled, it would end the process. One reload after the other,
 * however fast the signals come; those before `begin` are one reload then.
 */
export function reloadSignals() {
  let run: () => Promise<void> = async () => undefined;
  let asked = false;
  let last = Promise.resolve();
  const queue = () => {
    last = last.then(() => run());
  };
  process.on("SIGHUP", () => {
    asked = true;
    queue();
  });
  return {
    begin(reload: () => Promise<void>): void {
      run = reload;
      if (asked) queue();
    },
  };
}
