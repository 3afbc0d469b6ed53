import type { Clock } from "../../../core/index.ts";
import type { Session } from "./module.ts";

/**
 * Ends a connection so that the other side hears of it, with `code`; one whose streams do not end
 * within `ms` is torn down.
 */
export async function closeSession(
  session: Session,
  code: number,
  clock: Clock,
  ms: number,
): Promise<void> {
  if (session.destroyed) return;
  const options = { code, type: "application" } as const;
  const closed = session.close(options).catch(() => {});
  const { promise: late, resolve } = Promise.withResolvers<void>();
  using _timer = clock.after(ms, resolve);
  await Promise.race([closed, late]);
  if (!session.destroyed) session.destroy(undefined, options);
}
