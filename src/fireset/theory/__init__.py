"""Shifted neural tangent kernel, the bounds of the paper (``bounds``) and the certificate of a run."""

from fireset.engines.tangent import largest_eigenvalue
from fireset.theory import bounds
from fireset.theory.certificate import Certificate
from fireset.theory.claims import Assumption, CertificateReport, Claim
from fireset.theory.gradient_flow import FlowPath, follow_flow
from fireset.theory.joint_firing import both_above
from fireset.theory.kernel import dual_kernel, fire_set_kernel, shifted_ntk
from fireset.theory.kernel_regression import KernelRegression
from fireset.theory.required_width import RequiredWidth, least_width
from fireset.theory.separation import Separation, measure_separation
from fireset.theory.spectrum import Spectrum, extreme_eigenvalues, smallest_eigenvalue

__all__ = [
    "Assumption",
    "Certificate",
    "CertificateReport",
    "Claim",
    "FlowPath",
    "KernelRegression",
    "RequiredWidth",
    "Separation",
    "Spectrum",
    "both_above",
    "bounds",
    "dual_kernel",
    "extreme_eigenvalues",
    "fire_set_kernel",
    "follow_flow",
    "largest_eigenvalue",
    "least_width",
    "measure_separation",
    "shifted_ntk",
    "smallest_eigenvalue",
]
