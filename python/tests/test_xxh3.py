from __future__ import annotations

import unittest

from hearth_client.xxh3 import xxh3_64, xxh3_64_python

#: Length to hash of `payload(length)`, made with another implementation (Bun.hash.xxHash3).
VECTORS = {
    0: 0x2d06800538d394c2,
    1: 0xe12ef9d2eb86ceeb,
    2: 0x3b08003f97fc5a5b,
    3: 0xa29b6f4a8b7d72c8,
    4: 0x85af3244a24b1392,
    5: 0x374bc36cf82c324c,
    7: 0xdf297bcc8f9a1125,
    8: 0xa2eee60a24274a60,
    9: 0xdc66b0bbc98bca03,
    12: 0x81eb2ac03f3f9800,
    15: 0xb7cf1a4a262b9182,
    16: 0x769f52757c46023e,
    17: 0xc8312bcc59768942,
    31: 0xe5fa4e6edda6a02a,
    32: 0xdd01302f7bf5f3e7,
    33: 0xdc1565c115ea9308,
    63: 0x96f9aff59437d439,
    64: 0x8355b5ff1351d3f4,
    65: 0x26dbcec4bf9f0bd7,
    96: 0x274dbdbf3fe1399a,
    97: 0xfb483c7ee28bc3c4,
    127: 0xd24b9c078bba574a,
    128: 0x16d437f39754c5e8,
    129: 0x06c5a0b9c61eec40,
    130: 0x164820018e9d0ab3,
    160: 0x684544c0aeb5252d,
    192: 0x5ad966e59cc6086b,
    239: 0x2e9eabcf188a4c6b,
    240: 0x63e3c7a71424ee97,
    241: 0x36752ad9aa9dd57b,
    255: 0x0c8c15778675bd1b,
    256: 0x78aae64929192b1e,
    257: 0x938b47b228a48db3,
    511: 0x5f0960664ea34a84,
    512: 0xb6309e29343cd233,
    513: 0x6cb1cbd4a6558716,
    1023: 0x3a956eeb01565c81,
    1024: 0x8af9227c9a4db98f,
    1025: 0x786d25f7befc484b,
    1087: 0x60e1db9e90cf26c3,
    1088: 0xa0a4ffabfc952e3a,
    1089: 0x6061693720bc6a5c,
    2047: 0xbad048bed1558a9c,
    2048: 0x9b3991bac37788b2,
    2049: 0x9ef203592933d1b1,
    4096: 0xc54664e47705c53f,
    5000: 0x35049c54d3b2a8f5,
    65536: 0x67436495aef17a06,
}


def payload(length: int) -> bytes:
    return bytes((i * i + 7 * i + 3) >> 1 & 255 for i in range(length))


class Xxh3(unittest.TestCase):
    def test_vectors_of_every_length_class(self) -> None:
        for length, expected in VECTORS.items():
            with self.subTest(length):
                self.assertEqual(xxh3_64_python(payload(length)), expected)

    def test_the_function_in_use_agrees(self) -> None:
        for length, expected in VECTORS.items():
            with self.subTest(length):
                self.assertEqual(xxh3_64(payload(length)), expected)

    def test_a_view_of_wider_items_hashes_as_its_bytes(self) -> None:
        data = payload(512)
        view = memoryview(data).cast("Q")
        self.assertEqual(xxh3_64_python(view), VECTORS[512])


if __name__ == "__main__":
    unittest.main()
