const began = performance.now();

/** One line of progress on standard error, with the time since the start in seconds. */
export function say(text: string): void {
  const seconds = ((performance.now() - began) / 1000).toFixed(0).padStart(5);
  console.error(`engines: ${seconds} s  ${text}`);
}
