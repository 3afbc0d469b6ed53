/**
 * Ages, counted in requests, in steps of half an octave: 1, 2, 3, 4-5, 6-7, 8-11, 12-15 and so on.
 * What returns is as likely to do so a little earlier or later, at any scale.
 */
export const AGES = 44;

/** The step of an age; below 1 counts as 1, beyond the last step as the last. */
export function ageStep(age: number): number {
  if (age < 2) return 0;
  const octave = 31 - Math.clz32(age);
  const step = 2 * octave - 1 + ((age >>> (octave - 1)) & 1);
  return step < AGES ? step : AGES - 1;
}

/** First age of each step, and one past the last. */
export const AGE_FROM: Float64Array = Float64Array.from({ length: AGES + 1 }, (_, step) => {
  const octave = (step + 1) >> 1;
  return step === 0 ? 1 : 2 ** octave * ((step & 1) === 1 ? 1 : 1.5);
});

/** Ages in each step. */
export const AGE_WIDTH: Float64Array = Float64Array.from(
  { length: AGES },
  (_, step) => AGE_FROM[step + 1]! - AGE_FROM[step]!,
);
