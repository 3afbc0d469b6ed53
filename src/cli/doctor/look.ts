import { type Clock, messageOf } from "../../core/index.ts";

/** What another process found, or why it found nothing. */
export type Looked<Found> =
  | { readonly ok: true; readonly found: Found }
  | { readonly ok: false; readonly why: string };

/** Opening eight GPUs after a boot takes seconds. */
export const LOOK_MS = 30_000;

/**
 * What a process prints as JSON. Libraries of devices run in one of their own: a driver that hangs
 * or crashes ends that look alone. Never rejects; a process that cannot be killed is left behind.
 */
export async function lookInChild<Found>(
  command: readonly string[],
  clock: Clock,
  deadlineMs: number,
): Promise<Looked<Found>> {
  const streams = { stdin: "ignore", stdout: "pipe", stderr: "ignore" } as const;
  const child = Bun.spawn([...command], streams);
  const isLate = Promise.withResolvers<true>();
  using _timer = clock.after(deadlineMs, () => isLate.resolve(true));
  const ended = Promise.all([new Response(child.stdout).text(), child.exited]);
  const came = await Promise.race([ended, isLate.promise]);
  if (came === true) {
    child.kill("SIGKILL");
    child.unref();
    return { ok: false, why: `does not answer for ${deadlineMs / 1_000} s` };
  }
  const [text, code] = came;
  if (code !== 0) {
    return { ok: false, why: `ended the process that opened it (${child.signalCode ?? code})` };
  }
  try {
    return { ok: true, found: JSON.parse(text) };
  } catch (thrown) {
    return { ok: false, why: `said something else than JSON: ${messageOf(thrown)}` };
  }
}
