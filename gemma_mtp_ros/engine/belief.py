# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A Gaussian belief over a few numbers, which observations correct (Kalman filter). Pure.

Plain lists: a round of a small model takes two milliseconds, and the numbers are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul


class Belief:
    """Means and covariances of a few numbers.

    An observation of one of them moves the others as far as they are believed to move together,
    and counts for more the less is known.
    """

    def __init__(self, mean: Sequence[float], covariance: Sequence[Sequence[float]]) -> None:
        self.mean = list(mean)
        self.covariance = [list(row) for row in covariance]

    def copy(self) -> Belief:
        """An independent copy."""
        return Belief(self.mean, self.covariance)

    def along(self, weights: Sequence[float]) -> tuple[list[float], float]:
        """Covariance of each number with a weighted sum of all, and the variance of that sum."""
        along = [sum(map(mul, row, weights)) for row in self.covariance]
        return along, sum(map(mul, along, weights))

    def take(self, along: Sequence[float], surprise: float, variance: float) -> None:
        """Take in that a weighted sum was ``surprise`` more than its mean.

        :param along: of that sum, see :meth:`along`.
        :param variance: of the surprise: of the sum itself and of its observation.
        """
        mean, covariance = self.mean, self.covariance
        for i, each in enumerate(along):
            gain = each / variance
            mean[i] += gain * surprise
            covariance[i] = [
                old - gain * other for old, other in zip(covariance[i], along, strict=True)
            ]

    def widen(self, by: Sequence[Sequence[float]]) -> None:
        """Know less: add to the covariances."""
        for row, more in zip(self.covariance, by, strict=True):
            for i, each in enumerate(more):
                row[i] += each
