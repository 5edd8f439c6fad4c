# The case fails in both directories alike: that is a broken case, and no agreement.
exit 1
