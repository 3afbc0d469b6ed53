/** Longer subjects are refused: brokers take lines of 4 KiB, in which more than this must fit. */
const SUBJECT_CHARACTERS_MAX = 1_024;

/** One or more tokens, none empty, without blanks. */
const TOKENS = /^[^\s.]+(?:\.[^\s.]+)*$/;
const WILDCARD = /(?:^|\.)[*>](?:\.|$)/;

/** Whether something can be published there: no wildcards. */
export function isSubject(subject: string): boolean {
  return isPattern(subject) && !WILDCARD.test(subject);
}

/** Whether it can be subscribed: `*` stands for one token, `>` at the end for one or more. */
export function isPattern(pattern: string): boolean {
  if (pattern.length > SUBJECT_CHARACTERS_MAX || !TOKENS.test(pattern)) return false;
  return !/(?:^|\.)>\./.test(pattern);
}

/** Whether a message to `subject` reaches a subscription of `pattern`. */
export function matches(pattern: string, subject: string): boolean {
  const wanted = pattern.split(".");
  const given = subject.split(".");
  for (const [at, token] of wanted.entries()) {
    if (token === ">" && at === wanted.length - 1) return given.length > at;
    if (at >= given.length || (token !== "*" && token !== given[at])) return false;
  }
  return wanted.length === given.length;
}

/**
 * Whether a receiver may answer to `subject`, which the sender chose. It may not where agents take
 * commands or the server its own requests, whatever `prefixes` say. Null: no other limit.
 */
export function mayAnswerTo(subject: string, prefixes: readonly string[] | null): boolean {
  if (!isSubject(subject) || subject.startsWith("kv-control-") || subject.startsWith("$")) {
    return false;
  }
  return prefixes === null || prefixes.some((prefix) => subject.startsWith(prefix));
}
