const VARIABLES = ["NO_PROXY", "no_proxy"] as const;

/**
 * `fetch` past any proxy that the environment names: a proxy would be handed the token, and
 * `http://127.0.0.1` is another host's there. The runtime has no option for it; it looks at the
 * environment before `fetch` returns its promise, so nobody else ever sees the change.
 */
export function directFetch(url: string, init: BunFetchRequestInit): Promise<Response> {
  const before = VARIABLES.map((name) => process.env[name]);
  for (const name of VARIABLES) process.env[name] = "*";
  try {
    return fetch(url, init);
  } finally {
    for (const [index, name] of VARIABLES.entries()) {
      const value = before[index];
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  }
}
